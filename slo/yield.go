package slo

import "time"

// Pressure is how much of its promise a request of so many prompt tokens has
// used up: 0 is none, 1 all of it. Before the first token that is the time since
// it arrived, or the predicted prefill where that is longer, over the TTFT limit;
// after it the silence since the last token over the TBT limit. Without a limit
// it is 0.
//
// prefill is the predicted time from arrival to first token on a server that is
// not disturbed.
func (p Promise) Pressure(tokens int, gone, prefill, silence time.Duration, started bool) float64 {
	limit, spent := p.TTFT.For(tokens), max(gone, prefill)
	if started {
		limit, spent = p.TBT, silence
	}
	if limit <= 0 {
		return 0
	}
	return float64(spent) / float64(limit)
}

// Yielder decides whether training stops at its next block: from the moment a
// request's pressure reaches On until the highest pressure has fallen to Off.
// Between the two it stays as it is, so that one request near the line does not
// make training stutter.
type Yielder struct {
	// On and Off are pressures, 0 < Off < On. Lower ones stop training sooner and
	// for longer.
	On, Off float64

	yielding bool
}

// DefaultYielder stops training at half of an objective and lets it go at a
// third. An undisturbed request is at a quarter when objectives are four times
// the idle means.
func DefaultYielder() Yielder { return Yielder{On: 0.5, Off: 1.0 / 3} }

// Step takes the highest pressure among live requests, 0 without any.
func (y *Yielder) Step(pressure float64) (yielding bool) {
	switch {
	case pressure >= y.On:
		y.yielding = true
	case pressure <= y.Off:
		y.yielding = false
	}
	return y.yielding
}
