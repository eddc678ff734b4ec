package slo

import (
	"math"
	"time"
)

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
// make training stutter. Under pressure that does not end training still gets
// Floor of the time: a server that cannot keep its promise by itself would stop
// it for ever and be no faster for it.
type Yielder struct {
	// On and Off are pressures, 0 < Off < On. Lower ones stop training sooner and
	// for longer.
	On, Off float64
	// Floor is the least share of the time that training keeps, 0 to 0.5, over some
	// Memory.
	Floor  float64
	Memory time.Duration

	pressed, yielding bool
	share             float64 // of the time that was yielded, decaying with Memory
	at                time.Duration
}

// DefaultYielder stops training at half of an objective and lets it go at a
// third. An undisturbed request is at a quarter when objectives are four times
// the idle means.
func DefaultYielder() Yielder {
	return Yielder{On: 0.5, Off: 1.0 / 3, Floor: 0.05, Memory: 2 * time.Second}
}

// Step takes the highest pressure among live requests, 0 without any, at a moment
// of the caller's clock.
func (y *Yielder) Step(at time.Duration, pressure float64) (yielding bool) {
	was := 0.0
	if y.yielding {
		was = 1
	}
	y.share += (1 - math.Exp(-float64(at-y.at)/float64(y.Memory))) * (was - y.share)
	y.at = at
	switch {
	case pressure >= y.On:
		y.pressed = true
	case pressure <= y.Off:
		y.pressed = false
	}
	switch {
	case !y.pressed || y.share >= 1-y.Floor:
		y.yielding = false
	case y.share <= 1-2*y.Floor:
		y.yielding = true
	}
	return y.yielding
}
