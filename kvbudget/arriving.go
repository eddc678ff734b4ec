package kvbudget

import (
	"math"
	"time"
)

// arrivalTerms is how many arrivals within a window are looked at one by one.
const arrivalTerms = 16

// needs is the distribution of what requests needed as they came: a decayed
// histogram in blocks.
type needs struct {
	recent
	block Bytes
}

// needsMemory is how many of the last requests count, by weight.
const needsMemory = 500.0

func newNeeds(block Bytes) needs {
	return needs{recent: newRecent(lengthBucket, needsMemory), block: max(block, 1)}
}

func (n *needs) bin(b Bytes) int { return bucketOf(int((b + n.block - 1) / n.block)) }

// take removes one that was added lately.
func (n *needs) take(b Bytes) {
	bin := n.bin(b)
	w := min(n.unit/n.growth, n.w[bin])
	n.w[bin] -= w
	n.total -= w
}

// Arriving is the law of the requests that arrive within a window, one after
// another, each with its need: a negative binomial number (Poisson where counts
// are not over-dispersed) and needs as they came of late. It is made by
// Forecaster.Arriving and answers one question, Short.
type Arriving struct {
	// Window is how far it looks, Mean the number of requests expected in it.
	Window time.Duration
	Mean   float64

	spread  float64               // variance of the number
	atLeast [arrivalTerms]float64 // probability of 1, 2, ... and more arrivals
	rest    float64               // expected arrivals after those
	crowd   bool                  // too many for terms
	// size and sizeVar are the mean and variance of one need; above its survival at
	// the bins' lower edges.
	size, sizeVar, block float64
	middle               float64 // the median need
	above                [lengthBucket + 1]float64
}

// Arriving looks at the next window. It writes into a law of the caller's: it is
// large, and nothing is allocated.
func (f *Forecaster) Arriving(at, window time.Duration, into *Arriving) {
	*into = Arriving{Window: window, block: float64(f.cfg.Layout.Block())}
	c := f.rates.Ahead(at, 0, window)
	if c.Mean <= 0 || f.needs.total <= 0 || window <= 0 {
		return
	}
	into.Mean = c.Mean
	into.count(max(1, c.Var/c.Mean))
	into.weigh(&f.needs)
}

// weigh fills in the law of one need.
func (a *Arriving) weigh(n *needs) {
	var first, second float64
	for b := lengthBucket - 1; b >= 0; b-- {
		share := n.w[b] / n.total
		mid := (edge(b) + edge(b+1) - 1) / 2 * a.block
		first += share * mid
		second += share * mid * mid
		a.above[b] = a.above[b+1] + share
		if a.middle == 0 && a.above[b] >= 0.5 {
			a.middle = edge(b) * a.block
		}
	}
	a.size, a.sizeVar = first, max(0, second-first*first)
}

// count fills in the law of the number, whose variance is fano times its mean:
//
//	P(0) = fano^(-mean/(fano-1)),  P(k+1) = P(k)·(k·(fano-1)+mean) / (fano·(k+1))
func (a *Arriving) count(fano float64) {
	m := a.Mean
	a.spread = m * fano
	if a.crowd = m+4*math.Sqrt(a.spread) > arrivalTerms; a.crowd {
		return
	}
	none := -m
	if fano > 1+1e-9 {
		none = -m * math.Log(fano) / (fano - 1)
	}
	p, left := math.Exp(none), -math.Expm1(none)
	a.rest = m
	for k := range a.atLeast {
		a.atLeast[k] = left
		a.rest = max(0, a.rest-left)
		p *= (float64(k)*(fano-1) + m) / (fano * float64(k+1))
		left = max(0, left-p)
	}
}

// Short is how many requests of the window are expected to find no room, where
// room is there for what arrives in it: those whose need, with that of the
// window's requests before them, exceeds it,
//
//	Σₖ P(N ≥ k) · P(S₁ + … + Sₖ > room).
//
// One need is taken from the histogram, sums of more as gamma variables, and at
// least as likely as one large need among typical ones. With more arrivals than terms it is the expected excess over the mean need,
// E[(S₁+…+S_N − room)⁺] / E[S], which is the same number where needs are
// exponential and the newsvendor's loss (docs/RESERVE.md).
func (a *Arriving) Short(room Bytes) float64 {
	c := float64(max(room, 0))
	switch {
	case a.Mean == 0 || a.size == 0: // nobody comes, or who comes needs nothing
		return 0
	case a.crowd:
		variance := a.Mean*a.sizeVar + a.spread*a.size*a.size
		return gammaExcess(c, a.Mean*a.size, variance) / a.size
	}
	sum := a.atLeast[0] * a.one(c)
	for k := 1; k < arrivalTerms && a.atLeast[k] > 1e-12; k++ {
		sum += a.atLeast[k] * a.several(c, float64(k+1))
	}
	if a.rest > 1e-12 {
		sum += a.rest * a.several(c, arrivalTerms+1)
	}
	return sum
}

// several is the probability that the sum of n needs exceeds c. Needs are often
// heavy-tailed: far out one of them alone makes the sum, which a gamma variable of
// the same variance does not know. Above a tenth the sum is
// nobody's alone.
func (a *Arriving) several(c, n float64) float64 {
	alone := n * a.one(max(c-(n-1)*a.middle, 0))
	return max(gammaAbove(c, n*a.size, n*a.sizeVar), min(alone, 0.1))
}

// one is the probability that one need exceeds c. Needs are whole blocks.
func (a *Arriving) one(c float64) float64 {
	x := math.Floor(c / a.block)
	b := bucketOf(int(min(x, 1<<topOctave)))
	lo, hi := edge(b), edge(b+1)
	part := min(max((hi-1-x)/(hi-lo), 0), 1)
	return a.above[b+1] + part*(a.above[b]-a.above[b+1])
}

// gammaExcess is E[(X-c)⁺] of a gamma variable with that mean and variance: with
// shape α and scale θ, αθ·P(X' > c) − c·P(X > c), where X' has the shape α+1.
func gammaExcess(c, mean, variance float64) float64 {
	if mean <= 0 {
		return 0
	}
	scale := variance / mean
	return max(0, mean*gammaAbove(c, mean+scale, variance+scale*scale)-c*gammaAbove(c, mean, variance))
}
