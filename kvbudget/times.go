package kvbudget

import "time"

// timeUnit is the width of the finest bins of durations; the bins are those of
// Lengths: sixteen of 0.1 ms, then eight an octave, at most 12 % wide, up to 100 s.
const timeUnit = 100 * time.Microsecond

// durationBin is the bin of a duration.
func durationBin(d time.Duration) int { return bucketOf(int(max(d, 0) / timeUnit)) }

const (
	// timesKeep forgets a handover by half after 350 later ones.
	timesKeep = 1 - 1.0/500
	// A prior that fades like everything else: until some were measured, a handover
	// takes what it is given, and one in twenty fails.
	priorTimes, priorFailures = 1.0, 0.05
)

// Times is how long handovers took, as they were measured: a decayed histogram
// whose last bin is those that failed, which take for ever. No mean or shape is
// fitted to it. Its memory is constant.
type Times struct {
	w      [lengthBucket]float64
	failed float64
	total  float64
	// unit is what the next one weighs: weights are left as they are and later ones
	// weigh more.
	unit float64
}

// NewTimes starts from the time that a handover is given.
func NewTimes(given time.Duration) *Times {
	t := &Times{unit: 1, failed: priorFailures, total: priorTimes + priorFailures}
	t.w[durationBin(given)] = priorTimes
	return t
}

// Failure is one that was counted as failed and may still end.
type Failure struct{ weight float64 }

// Learn takes one that ended after d.
func (t *Times) Learn(d time.Duration) {
	t.w[durationBin(d)] += t.unit
	t.grow()
}

// Fail takes one that did not end in time, or not at all.
func (t *Times) Fail() Failure {
	f := Failure{t.unit}
	t.failed += t.unit
	t.grow()
	return f
}

// Recover says that one which was counted as failed has ended after d.
func (t *Times) Recover(f Failure, d time.Duration) {
	moved := min(f.weight, t.failed)
	t.failed -= moved
	t.w[durationBin(d)] += moved
}

// grow counts one and rescales before weights grow out of hand. A Failure from
// before that weighs more than it did; Recover takes no more than there is.
func (t *Times) grow() {
	t.total += t.unit
	t.unit /= timesKeep
	if t.unit < 1e9 {
		return
	}
	for b := range t.w {
		t.w[b] /= t.unit
	}
	t.failed /= t.unit
	t.total /= t.unit
	t.unit = 1
}

// Failed is the share that failed.
func (t *Times) Failed() float64 { return t.failed / t.total }

// Late is the share that took as long as d or longer, failures included. A bin
// counts whole: those that took up to 12 % less than d count as late.
func (t *Times) Late(d time.Duration) float64 {
	late := t.failed
	for _, w := range t.w[durationBin(d):] {
		late += w
	}
	return min(late/t.total, 1)
}

// late is Late at the lower edge of every bin.
func (t *Times) late(share *[lengthBucket]float64) {
	sum := t.failed
	for b := lengthBucket - 1; b >= 0; b-- {
		sum += t.w[b]
		share[b] = min(sum/t.total, 1)
	}
}

// lateMet is the probability that a handover which is under way at a random moment
// goes on for d or longer, by the stationary excess of the measured times (Feller,
// vol. 2, XI.4), ∫ P(T > t)dt from d on over E[T]; nobody goes on beyond the
// horizon. It is written for the lower edge of every bin.
func (t *Times) lateMet(horizon time.Duration, into *[lengthBucket]float64) {
	unit, most := timeUnit.Seconds(), horizon.Seconds()
	left, sum := t.failed, 0.0 // weight of those that go on, and its integral from the top down
	for b := lengthBucket - 1; b >= 0; b-- {
		lo, hi := edge(b)*unit, min(edge(b+1)*unit, most)
		left += t.w[b]
		sum += left * max(0, hi-lo)
		into[b] = sum
	}
	for b := range into {
		into[b] /= max(sum, 1e-300)
	}
}

// Goes is the share of handovers that go on for d or longer of those that have
// gone on for age.
func (t *Times) Goes(age, d time.Duration) float64 {
	if been := t.Late(age); been > 0 {
		return min(1, t.Late(age+d)/been)
	}
	return 1
}

// Around is how long the handover takes that is under way at a random moment
// when one is, E[T²]/E[T]: a long one is met for longer (Feller, An Introduction
// to Probability Theory, vol. 2, I.4). None counts for more than the horizon,
// which failures take.
func (t *Times) Around(horizon time.Duration) time.Duration {
	most := horizon.Seconds()
	first, second := t.failed*most, t.failed*most*most
	for b, w := range t.w {
		took := min(edge(b+1)*timeUnit.Seconds(), most)
		first += w * took
		second += w * took * took
	}
	return time.Duration(second / first * float64(time.Second))
}

// Quantile is the time that a share q does not exceed, the upper edge of its
// bin; ok is false where those that ended are not as many.
func (t *Times) Quantile(q float64) (d time.Duration, ok bool) {
	sum := 0.0
	for b, w := range t.w {
		if sum += w; sum >= q*t.total {
			return time.Duration(edge(b+1)) * timeUnit, true
		}
	}
	return 0, false
}
