package slo

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
)

// Target is the share of samples that must be within their limit, in parts per
// million: whole numbers keep "99 % of 100 samples" at exactly one miss, which
// 1-0.99 in floating point does not.
type Target uint32

const (
	// HardLimit is a target without a budget: one miss breaks it.
	HardLimit Target = 1_000_000
	// DefaultTarget stands where none is given: 99 %.
	DefaultTarget Target = 990_000
)

// TargetOf turns a share such as 0.99 into a Target. It refuses what is outside
// (0, 1] and what has more than six digits.
func TargetOf(share float64) (Target, error) {
	ppm := math.Round(share * float64(HardLimit))
	if !(share > 0 && share <= 1) || math.Abs(share*float64(HardLimit)-ppm) > 1e-3 || ppm < 1 {
		return 0, fmt.Errorf("got %v, want a share in (0, 1] with at most 6 digits, such as 0.99; 1 is a hard limit", share)
	}
	return Target(ppm), nil
}

// Share is the target as a fraction in (0, 1].
func (t Target) Share() float64 { return float64(t) / float64(HardLimit) }

// String is the target in percent, such as 99% or 99.9%.
func (t Target) String() string {
	return strconv.FormatFloat(float64(t)/10_000, 'f', -1, 64) + "%"
}

// Allowed is how many of n samples may miss: floor((1 - target) * n), exactly.
func (t Target) Allowed(n uint64) uint64 {
	hi, lo := bits.Mul64(n, uint64(HardLimit-min(t, HardLimit)))
	allowed, _ := bits.Div64(hi, lo, uint64(HardLimit))
	return allowed
}

// Tally counts one objective: Within and Beyond are observations, Missing is
// requests that never gave one (an error, no first token).
type Tally struct {
	Within  uint64 `json:"within"`
	Beyond  uint64 `json:"beyond"`
	Missing uint64 `json:"no_data"`
}

// N is everything that should have been within.
func (t Tally) N() uint64 { return t.Within + t.Beyond + t.Missing }

// Misses are those that were not: a sample that never came is a miss.
func (t Tally) Misses() uint64 { return t.Beyond + t.Missing }

// Attainment is Within over N; ok is false before the first sample.
func (t Tally) Attainment() (share float64, ok bool) {
	if t.N() == 0 {
		return 0, false
	}
	return float64(t.Within) / float64(t.N()), true
}

// Met tells whether the misses are at most those that the target allows; ok is
// false before the first sample.
func (t Tally) Met(target Target) (met, ok bool) {
	return t.Misses() <= target.Allowed(t.N()), t.N() > 0
}

// BurnRate is the share of misses over the share that the target allows: at 1
// the window's budget is used up exactly, at 10 in a tenth of it (Google's SRE
// workbook, chapter 5). ok is false before the first sample, and for a hard
// limit that was missed: it had no budget to burn.
func (t Tally) BurnRate(target Target) (rate float64, ok bool) {
	allowed := HardLimit - min(target, HardLimit)
	switch {
	case t.N() == 0 || allowed == 0 && t.Misses() > 0:
		return 0, false
	case t.Misses() == 0:
		return 0, true
	}
	return float64(t.Misses()) * float64(HardLimit) / (float64(t.N()) * float64(allowed)), true
}

// BudgetLeft is the part of the window's error budget that is not used: 1
// without a miss, 0 when used up, below 0 when overspent, and 0 for a hard limit
// that was missed. ok is false before the first sample.
func (t Tally) BudgetLeft(target Target) (left float64, ok bool) {
	if t.N() == 0 {
		return 0, false
	}
	rate, burns := t.BurnRate(target)
	if !burns {
		return 0, true
	}
	return 1 - rate, true
}

func (t *Tally) add(o Tally) {
	t.Within += o.Within
	t.Beyond += o.Beyond
	t.Missing += o.Missing
}

func (t *Tally) sub(o Tally) {
	t.Within -= o.Within
	t.Beyond -= o.Beyond
	t.Missing -= o.Missing
}

// judge is the tally of one sample that was seen.
func judge(kept bool) Tally {
	if kept {
		return Tally{Within: 1}
	}
	return Tally{Beyond: 1}
}
