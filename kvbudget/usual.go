package kvbudget

import "math"

const (
	// The usual rise is that of about the last 3,000 outcomes, and losses are
	// compared over about as many.
	usualDecay, lossDecay = 1 - 1.0/3000, 1 - 1.0/3000
	// preference turns a relative difference in loss into log odds, and lean is the
	// difference that the law is trusted beyond: it alone knows the state, so that
	// it covers in light and in heavy load.
	preference, lean = 40.0, 0.03
	// usualLeast is the outcomes without which nothing is usual yet.
	usualLeast = 300
)

// usual is the plain forecast that the law must beat: the quantiles of past
// rises, whatever the state. Where arrivals are steady nothing in the state
// predicts more, and the law's own estimates are noise; the two forecasts are
// averaged by the pinball losses that they had.
type usual struct {
	rises     *Lengths // in blocks
	law, mine float64  // decayed losses at the tuned level
	seen      int      // outcomes, up to usualLeast
}

func newUsual() usual {
	u := usual{rises: NewLengths()} // its few large values stand for what was not seen yet
	u.rises.keep = usualDecay
	return u
}

// share is the usual forecast's weight; none before both were seen to err
// and enough was seen.
func (u *usual) share() float64 {
	if u.law <= 0 || u.mine <= 0 || u.seen < usualLeast {
		return 0
	}
	return 1 / (1 + math.Exp(preference*((u.mine-u.law)/min(u.law, u.mine)+lean)))
}

// rise is the usual quantile, in bytes.
func (u *usual) rise(q, block float64) float64 { return u.rises.point(q) * block }

// learn takes an outcome beside what both had forecast, in bytes.
func (u *usual) learn(rise, law, mine, block float64) {
	u.seen = min(u.seen+1, usualLeast)
	u.law = u.law*lossDecay + pinball(law, rise)
	u.mine = u.mine*lossDecay + pinball(mine, rise)
	u.rises.Learn(int(rise/block) + 1) // a rise of no block is a length of 1: 0 teaches nothing
}

// pinball is the loss of a forecast of the tuned level.
func pinball(forecast, came float64) float64 {
	if came > forecast {
		return tunedLevel * (came - forecast)
	}
	return (1 - tunedLevel) * (forecast - came)
}

// point is the quantile of a length that counts from 1, less that 1, evenly
// inside a bucket.
func (l *Lengths) point(q float64) float64 {
	l.build()
	lo, hi := 0, lengthBucket
	for lo < hi { // the first bucket at whose end at most 1-q is left
		if b := (lo + hi) / 2; l.s[b+1] > 1-q {
			lo = b + 1
		} else {
			hi = b
		}
	}
	b := min(lo, lengthBucket-1)
	part := 0.0
	if w := l.s[b] - l.s[b+1]; w > 0 {
		part = min(max((l.s[b]-(1-q))/w, 0), 1)
	}
	return max(0, edge(b)+part*(edge(b+1)-edge(b))-1)
}
