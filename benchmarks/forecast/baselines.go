package forecast

import (
	"math"
	"slices"
)

// levels are the quantiles that are scored, and p95 the one that counts.
var levels = [...]float64{0.5, 0.9, 0.95, 0.99}

const p95 = 2

// quantiles are the predictions of one method for one decision, in bytes.
type quantiles [len(levels)]float64

// state is what a method may know at a decision.
type state struct {
	need    float64
	average float64 // of need over the last averageOf
	worst   float64 // every request to the limit
}

// method predicts one horizon. predict is called once a decision, learn once for
// each in the same order, as soon as its outcome is known.
type method interface {
	predict(s state) quantiles
	learn(most float64)
	// at is the predicted probability of less than b, and of at most b, as of the
	// last prediction; ok is false where a method predicts no distribution.
	at(b float64) (below, upTo float64, ok bool)
}

// point predicts one value for every level.
type point struct {
	name  string
	value func(state) float64
}

func (p point) predict(s state) (q quantiles) {
	for i := range q {
		q[i] = p.value(s)
	}
	return q
}
func (point) learn(float64)                           {}
func (point) at(float64) (below, up float64, ok bool) { return 0, 0, false }

// rolling predicts a base plus the empirical quantile of past outcomes above
// theirs; with step above 0, online conformal correction moves each level until
// it covers (Gibbs and Candès, Adaptive Conformal Inference, 2021).
type rolling struct {
	base    func(state) float64
	window  int
	step    float64
	past    []float64 // in order of time, the last window of them
	sorted  []float64
	bases   []float64 // of predictions whose outcome is not known yet
	sent    []quantiles
	level   quantiles
	current float64
}

func newRolling(window int, step float64, base func(state) float64) *rolling {
	return &rolling{base: base, window: window, step: step, level: levels}
}

func (r *rolling) predict(s state) (q quantiles) {
	r.current = r.base(s)
	for i := range q {
		q[i] = r.current + r.quantile(r.level[i])
	}
	r.bases, r.sent = append(r.bases, r.current), append(r.sent, q)
	return q
}

// quantile is the smallest past value that a share p does not exceed.
func (r *rolling) quantile(p float64) float64 {
	n := len(r.sorted)
	if n == 0 {
		return 0
	}
	i := int(math.Ceil(p*float64(n))) - 1
	return r.sorted[min(max(i, 0), n-1)]
}

func (r *rolling) learn(most float64) {
	for i, q := range r.sent[0] {
		if r.step > 0 {
			miss := 0.0
			if most > q {
				miss = 1
			}
			r.level[i] = min(max(r.level[i]+r.step*(miss-(1-levels[i])), 0), 1)
		}
	}
	x := most - r.bases[0]
	r.bases, r.sent = r.bases[1:], r.sent[1:]
	if len(r.past) == r.window {
		at, _ := slices.BinarySearch(r.sorted, r.past[0])
		r.sorted = slices.Delete(r.sorted, at, at+1)
		r.past = r.past[1:]
	}
	at, _ := slices.BinarySearch(r.sorted, x)
	r.sorted = slices.Insert(r.sorted, at, x)
	r.past = append(r.past, x)
}

func (r *rolling) at(b float64) (below, upTo float64, ok bool) {
	n := len(r.sorted)
	if n == 0 {
		return 0, 1, true
	}
	lo, _ := slices.BinarySearch(r.sorted, b-r.current)
	hi := lo
	for hi < n && r.sorted[hi] == b-r.current {
		hi++
	}
	return float64(lo) / float64(n), float64(hi) / float64(n), true
}

// Names of the methods; the bound is none of the baselines.
const (
	lull  = "lull"
	bound = "bound: answers known"
)

// baselineNames are in the order of the table.
var baselineNames = []string{"persistence", "moving average 10 s", "worst case by limit", "rolling 60 s", "rolling 300 s", "rolling 300 s, conformal"}

// newBaseline makes a method for one horizon.
func newBaseline(name string) method {
	need := func(s state) float64 { return s.need }
	const second = int(1e9 / decide)
	switch name {
	case "persistence":
		return point{name, need}
	case "moving average 10 s":
		return point{name, func(s state) float64 { return s.average }}
	case "worst case by limit":
		return point{name, func(s state) float64 { return s.worst }}
	case "rolling 60 s":
		return newRolling(60*second, 0, need)
	case "rolling 300 s":
		return newRolling(300*second, 0, need)
	case "rolling 300 s, conformal":
		return newRolling(300*second, 0.005, need)
	}
	panic("forecast: no baseline is called " + name)
}
