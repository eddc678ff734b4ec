package slo

import (
	"cmp"
	"math"
	"slices"
	"time"
)

const (
	// contentionMemory is how long intervals and requests count; contentionRequests is
	// how many requests at most.
	contentionMemory, contentionRequests = 10 * time.Minute, 500
	// A slope is known from so many pairs on, where two standard errors are no more than
	// itself or than a tenth of the gaps.
	leastPairs, negligible = 15.0, 0.1
	// Fewer requests than this say nothing of how often one misses.
	leastRequests = 20
	// priceAround is the half width of the duties over which misses are counted for
	// their shadow price: misses come one by one.
	priceAround = 0.05
)

// Why a Share is what it is.
const (
	SharePriced    = "priced"       // the duty at which both sides are worth the same
	ShareUnpriced  = "no_prices"    // nothing is priced
	ShareUnrated   = "unrated"      // it is, and no job has told its speed (Choose cannot tell, its caller can)
	ShareUntried   = "no_slope"     // what the duty does to gaps is not known well enough
	ShareUncounted = "few_requests" // too few requests have ended to count misses
)

// Contention measures by experiment what training's share of the device's time (its
// duty, 0 to 1) costs requests, and weighs that against what training makes of it.
//
// The duty is moved up for an interval and down for the next, or the other way round,
// by a draw. With x the mean of gap over TBT limit in an interval and d its mean duty,
// the slope of x over d is the sum of x(up) - x(down) over that of d(up) - d(down) of
// all pairs (A. Wald, The Fitting of Straight Lines if Both Variables are Subject to
// Error, Annals of Mathematical Statistics 11, 1940). The order being drawn, a load
// that lengthens gaps and makes a controller lower the duty is not taken for what the
// duty does.
//
// The zero value knows nothing. It is for one goroutine at a time; times are of the
// caller's clock and never go back.
type Contention struct {
	n, x, d, dx, dd    float64 // decayed sums over pairs: of means, and of up - down
	dxdx, dxdd, dddd   float64 // and of their products
	at                 time.Duration
	sum                float64 // of the gaps of the interval under way
	gaps               int
	up, second, halved bool // the interval under way; halved: the first of its pair had gaps
	first              [2]float64
	met                []ended // the last requests, oldest first
}

// ended is one request: the larger of its TTFT and its mean gap over their limits, the
// mean duty beside it, and the price of its miss.
type ended struct {
	at                 time.Duration
	used, duty, missed float64
}

// Share is the duty that training should have, and what one more point of it (a
// hundredth) is worth to either side, a second, in the currency of the prices.
type Share struct {
	Duty                   float64 // 0 unless Why is SharePriced
	Why                    string
	ToTraining, ToRequests float64
	// Slope is by how much the mean of gap over limit rises from a duty of 0 to one of 1,
	// Err its standard error, Pairs on how many trials it rests, decayed.
	Slope, Err, Pairs float64
	Requests          int
}

// Gap takes one gap between two tokens and the request's limit on it.
func (c *Contention) Gap(d, limit time.Duration) {
	if limit > 0 {
		c.sum += float64(d) / float64(limit)
		c.gaps++
	}
}

// Turn ends an interval in which training had that mean duty, and says whether the
// duty is to be up or down in the next. draw is uniform in [0, 1) and decides for the
// first of a pair; the second is the opposite. A pair of which one had no gap says
// nothing.
func (c *Contention) Turn(at time.Duration, duty, draw float64) (up bool) {
	x := 0.0
	if c.gaps > 0 {
		x = c.sum / float64(c.gaps)
	}
	switch {
	case c.second && c.halved && c.gaps > 0:
		c.pair(at, x, duty)
	case !c.second:
		c.halved, c.first = c.gaps > 0, [2]float64{x, duty}
	}
	c.second, c.sum, c.gaps = !c.second, 0, 0
	if c.second {
		c.up = !c.up
	} else {
		c.up = draw < 0.5
	}
	return c.up
}

// pair adds the interval that ends and the one before it.
func (c *Contention) pair(at time.Duration, x, duty float64) {
	fade := math.Exp(-float64(at-c.at) / float64(contentionMemory))
	dx, dd := x-c.first[0], duty-c.first[1]
	if !c.up {
		dx, dd = -dx, -dd
	}
	for _, s := range []struct {
		of  *float64
		add float64
	}{
		{&c.n, 1}, {&c.x, (x + c.first[0]) / 2}, {&c.d, (duty + c.first[1]) / 2}, {&c.dx, dx}, {&c.dd, dd},
		{&c.dxdx, dx * dx}, {&c.dxdd, dx * dd}, {&c.dddd, dd * dd},
	} {
		*s.of = *s.of*fade + s.add
	}
	c.at = at
}

// Rest forgets the pair under way: nobody is there to be disturbed.
func (c *Contention) Rest() { c.sum, c.gaps, c.second, c.halved = 0, 0, true, false }

// Ended takes a request: the part of its promise that it used up (1 is all of it), the
// mean duty beside it and what its miss would cost.
func (c *Contention) Ended(at time.Duration, used, duty, missed float64) {
	c.met = append(c.met, ended{at, used, duty, missed})
	c.forget(at)
}

func (c *Contention) forget(at time.Duration) {
	old := max(0, len(c.met)-contentionRequests)
	for old < len(c.met) && at-c.met[old].at > contentionMemory {
		old++
	}
	c.met = slices.Delete(c.met, 0, old)
}

// slope is that of gap over limit by the duty, and its standard error; ok is false
// where neither can be told.
func (c *Contention) slope() (slope, err float64, ok bool) {
	if c.n < 2 || c.dd <= 1e-3*c.n {
		return 0, 0, false
	}
	slope = c.dx / c.dd
	rest := max(0, c.dxdx-2*slope*c.dxdd+slope*slope*c.dddd)
	return slope, math.Sqrt(rest) / c.dd, true
}

// Choose weighs. worth is what training makes of the whole device's time, a second, in
// the currency of the prices; floor is its least duty.
//
// At a duty s training makes worth·s, and of the requests of late those miss whose use
// of their promise, scaled by the mean gap at s over that at their own duty, exceeds 1.
// The duty with the largest difference is found exactly: it is 1 or one at which some
// request just keeps its promise.
func (c *Contention) Choose(at time.Duration, worth, floor float64) Share {
	c.forget(at)
	slope, err, tried := c.slope()
	out := Share{Why: SharePriced, ToTraining: worth / 100, Slope: slope, Err: err, Pairs: c.n, Requests: len(c.met)}
	switch {
	case worth <= 0:
		out.Why = ShareUnpriced
	case !tried || c.n < leastPairs || 2*err > max(slope, negligible*c.x/c.n):
		out.Why = ShareUntried
	case len(c.met) < leastRequests:
		out.Why = ShareUncounted
	}
	if out.Why != SharePriced {
		return out
	}
	limits := c.limits(slope)
	span := max((at - c.met[0].at).Seconds(), 1)
	best, lost := math.Inf(-1), 0.0
	for i, l := range append(limits, bearing{duty: 1}) {
		if d := min(l.duty, 1); d >= floor || i == len(limits) {
			if gain := worth*d - lost/span; gain >= best {
				best, out.Duty = gain, d
			}
		}
		if l.duty >= 1 {
			break
		}
		lost += l.price
	}
	low, high := max(out.Duty-priceAround, floor), min(out.Duty+priceAround, 1)
	if high > low {
		out.ToRequests = (missing(limits, high) - missing(limits, low)) / span / (high - low) / 100
	}
	return out
}

// bearing is the highest duty at which a request keeps its promise, and what it costs
// that it does not.
type bearing struct{ duty, price float64 }

// limits are those of the requests of late, ascending; infinite where no duty matters.
func (c *Contention) limits(slope float64) []bearing {
	mean, duty := c.x/c.n, c.d/c.n
	at := func(d float64) float64 { return max(mean+slope*(d-duty), mean/20) }
	out := make([]bearing, 0, len(c.met)+1)
	for _, r := range c.met {
		b := bearing{duty: math.Inf(1), price: r.missed}
		switch {
		case slope > 0 && r.used > 0:
			b.duty = duty + (at(r.duty)/r.used-mean)/slope
		case r.used > 1:
			b.duty = math.Inf(-1)
		}
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b bearing) int { return cmp.Compare(a.duty, b.duty) })
	return out
}

// missing is the price of the requests that would miss at a duty.
func missing(limits []bearing, duty float64) (sum float64) {
	for _, l := range limits {
		if l.duty < duty {
			sum += l.price
		}
	}
	return sum
}
