package slo

import (
	"math"
	"time"
)

// Pacer turns the gaps that requests see into a duty cycle for training, 0 to 1:
// the slow loop beside Yielder. It is an integral controller on the logarithm of
// the duty,
//
//	duty *= exp(Gain * (1 - load/Target)),    load = mean of gap / TBT limit,
//
// stepped every Every while requests decode. Where the gap rises with the duty
// as g0*(1 + a*duty), the loop's gain around its rest point is at most Gain, so
// for Gain < 1 it comes to rest without swinging, and for one interval of delay
// in the measurement too.
type Pacer struct {
	// Target is the part of the objective at which mean gaps are held. Higher gives
	// training more and attainment less room.
	Target float64
	// Gain is the step, 0 to 1. Higher settles sooner and answers noise more.
	Gain float64
	// Floor is the least duty: the progress that training keeps whatever happens.
	Floor float64
	// Every is the time between steps.
	Every time.Duration

	duty float64
	sum  float64
	n    int
	at   time.Duration // of the last step, on the caller's clock
}

// DefaultPacer holds mean gaps at 0.7 of the objective, steps ten times a second
// and leaves training a twentieth of its speed.
func DefaultPacer() Pacer {
	return Pacer{Target: 0.7, Gain: 0.5, Floor: 0.05, Every: 100 * time.Millisecond, duty: 1}
}

// Gap takes one gap between two tokens of a request, and the request's limit on
// it; without a limit it says nothing.
func (p *Pacer) Gap(d, limit time.Duration) {
	if limit > 0 {
		p.sum += float64(d) / float64(limit)
		p.n++
	}
}

// Step returns the duty at a moment. decoding is how many requests with a TBT
// limit decode: without any, training has the device to itself, at once. An
// interval without a gap though requests decode says nothing and changes nothing:
// Yielder sees silence.
func (p *Pacer) Step(at time.Duration, decoding int) (duty float64) {
	if p.duty == 0 {
		p.duty = 1
	}
	switch {
	case decoding == 0:
		p.duty, p.sum, p.n, p.at = 1, 0, 0, at
	case at-p.at >= p.Every:
		p.at = at
		if p.n > 0 {
			load := p.sum / float64(p.n)
			p.duty = min(1, max(p.Floor, p.duty*math.Exp(p.Gain*(1-load/p.Target))))
			p.sum, p.n = 0, 0
		}
	}
	return p.duty
}
