package kvbudget

import (
	"math"
	"time"
)

const (
	// priorResidence is a request's time in the engine before any was seen.
	priorResidence = 2 * time.Second
	// residenceGain is the weight of one finished request.
	residenceGain = 0.05
)

// staleAfter is the part of a horizon for which a rise stands, at least a
// millisecond.
const staleAfter = 32

// Demand is the KV that the largest need within the i-th horizon does not exceed,
// with probability q. How far need rises is worked out anew when a thirty-second
// of the horizon has passed, and over the first horizon with every arrival; what
// is needed now is always that of now.
func (f *Forecaster) Demand(at time.Duration, i int, q float64) Bytes {
	last := &f.looks[i].last
	if !last.known || last.q != q || at-last.at >= max(f.looks[i].horizon/staleAfter, time.Millisecond) || i == 0 && last.turns != f.turns {
		o := f.Outlook(at, i)
		*last = demand{known: true, at: at, q: q, turns: f.turns, rise: o.Quantile(q) - o.Need}
	}
	return f.need + last.rise
}

// demand is the last rise that was asked for.
type demand struct {
	known bool
	at    time.Duration
	q     float64
	turns uint64
	rise  Bytes
}

// PerSecond is the arrivals a second that the last look over the first horizon
// expected.
func (f *Forecaster) PerSecond() float64 { return f.flow }

// Leaving is the probability that no live request ends within a time, and what
// they give back on average if one does, less what they grow by; not below 0.
// They leave as from an
// M/M/∞ queue with the learned time in the engine, each by itself.
func (f *Forecaster) Leaving(within time.Duration) (none float64, some Bytes) {
	live := float64(len(f.live))
	each := -math.Expm1(-within.Seconds() / f.residence)
	none = math.Exp(-live * each)
	if none >= 1 {
		return 1, 0
	}
	left := float64(f.need) * each / (1 - none)
	grown := live * f.speed.perSecond() * within.Seconds() * float64(f.cfg.Layout.PerToken)
	return none, Bytes(max(0, left-grown))
}

// AtEnd is the most that a request may need at its end: its prompt and its
// limit, or the 99th percentile of its kind's answers when it has none.
func (f *Forecaster) AtEnd(r *Active) Bytes {
	answer := r.asked.MaxTokens
	if answer <= 0 {
		answer = max(r.lengths.Quantile(0.99), r.output/r.asked.Sequences)
	}
	if r.limit > 0 {
		answer = min(answer, r.limit)
	}
	return f.bytes(r, float64(answer)*float64(r.asked.Sequences))
}
