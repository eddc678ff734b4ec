package kvbudget

import "math"

// peakLaw is the distribution of the rise: by how much the largest need within a
// horizon is above the need at its start. It is a mixture over the number of
// arrivals. With few, each adds the size of a prompt; with many, need is taken
// as a drifting walk and the rise as its running maximum, by the reflection
// principle (Harrison, Brownian Motion and Stochastic Flow Systems, 1.8)
//
//	P(max > x) = Φc((x-d)/σ) + exp(2dx/σ²)·Φc((x+d)/σ)
//
// with the first term's normal replaced by a gamma, since sizes are skewed.
type peakLaw struct {
	counts Counts
	// size and sizeVar are the mean and variance of what an arrival adds, with
	// its growth; sizes is the distribution of prompts in units of unit bytes.
	size, sizeVar, unit float64
	sizes               *Lengths
	// stay is the mean share of the horizon that an arrival stays for.
	stay float64
	// grow is what live requests add, fall what those take away that end, and
	// fallVar its variance.
	grow, fall, fallVar float64
	block               float64
}

// above is the probability that the rise exceeds x, for x of 0 or more.
func (l *peakLaw) above(x float64) float64 { return l.sum(x, 1e-7) }

// sum adds the terms whose weight is at least the least.
func (l *peakLaw) sum(x, least float64) float64 {
	p := 0.0
	if w := l.counts.P[0]; w > least {
		p += w * l.quiet(x)
	}
	for k := 1; k < countTerms; k++ {
		if w := l.counts.P[k]; w > least {
			p += w * l.few(x, float64(k))
		}
	}
	if l.counts.Tail > least {
		p += l.counts.Tail * l.many(x)
	}
	return min(max(p, 0), 1)
}

// atBlock is the probability of a rise of more blocks than x has, and of as many
// or more.
func (l *peakLaw) atBlock(x float64) (more, orMore float64) {
	if x <= 0 {
		return l.above(l.block), 1
	}
	orMore = l.above(x)
	return min(l.above(x+l.block), orMore), orMore // rounding apart
}

// quiet is the case without an arrival: live requests grow, and how far depends
// on who ends early, which is spread evenly around the expected growth.
func (l *peakLaw) quiet(x float64) float64 {
	if l.grow <= 0 {
		return 0
	}
	lo, hi := l.grow/2, l.grow*5/4+l.block
	return min(max((hi-x)/(hi-lo), 0), 1)
}

// few is the case of k arrivals, the last of which comes at k/(k+1) of the
// horizon on average; those before it may have left.
func (l *peakLaw) few(x, k float64) float64 {
	part := k / (k + 1)
	y := x - (l.grow-l.fall)*part
	if k == 1 {
		return l.one(y)
	}
	n := 1 + (k-1)*l.stay
	return gammaAbove(y, n*l.size, n*l.sizeVar+l.fallVar*part)
}

// one is the size of one arrival, from the sizes seen.
func (l *peakLaw) one(y float64) float64 {
	y -= l.size - l.sizes.mean()*l.unit // its own growth
	if y <= 0 {
		return 1
	}
	s, _, _ := l.sizes.at(y / l.unit)
	return s
}

// many is the running maximum. Where arrivals stay for a part of the horizon
// only, it is that of as many independent looks as such parts fit.
func (l *peakLaw) many(x float64) float64 {
	n, v := l.counts.TailMean*l.stay, l.counts.TailVar*l.stay*l.stay+l.counts.TailMean*l.stay*(1-l.stay)
	drift := l.grow - l.fall
	variance := n*l.sizeVar + v*l.size*l.size + l.fallVar
	p := gammaAbove(x-drift, n*l.size, variance) + reflected(x, drift+n*l.size, math.Sqrt(variance))
	switch {
	case p >= 1:
		return 1
	case l.stay == 1:
		return p
	}
	return -math.Expm1(math.Log1p(-p) / l.stay)
}

// reflected is exp(2dx/σ²)·Φc((x+d)/σ); far out by Mills' ratio as a continued
// fraction (Laplace), where the two factors would leave the range of floats. The two
// forms must meet, or the probability of more would rise with x there.
func reflected(x, d, sd float64) float64 {
	if sd <= 0 {
		return 0
	}
	z := (x + d) / sd
	if z > 8 {
		u, mills := (x-d)/sd, z
		for k := 10.0; k > 0; k-- {
			mills = z + k/mills
		}
		return math.Exp(-u*u/2) / (mills * math.Sqrt(2*math.Pi))
	}
	return math.Exp(min(2*d*x/(sd*sd), 700)) * normalAbove(z)
}

func normalAbove(z float64) float64 { return math.Erfc(z/math.Sqrt2) / 2 }

// gammaAbove is the survival function of a gamma variable with that mean and
// variance, by Wilson and Hilferty (1931).
func gammaAbove(y, mean, variance float64) float64 {
	if y <= 0 {
		return 1
	}
	if mean <= 0 {
		return 0
	}
	variance = max(variance, mean*mean*1e-4)
	k := mean * mean / variance
	return normalAbove(3 * math.Sqrt(k) * (math.Cbrt(y/mean) - 1 + 1/(9*k)))
}

// rise is the least x that is exceeded with at most probability p, to 1/16 of
// a block or 0.05 %: a bracket, then regula falsi with the Illinois step (Dowell and
// Jarratt, 1971) on the logarithm, which is nearly straight in the tail.
func (l *peakLaw) rise(p float64) float64 {
	least := p * 1e-3 // terms that cannot move the answer
	lo, flo := 0.0, l.logOver(0, p, least)
	if flo <= 0 {
		return 0
	}
	hi := l.grow + l.block + l.counts.Mean*l.size + 2*math.Sqrt(l.counts.Mean*l.sizeVar+l.counts.Var*l.size*l.size)
	fhi := l.logOver(hi, p, least)
	for range 60 {
		if fhi <= 0 {
			break
		}
		lo, flo = hi, fhi
		hi *= 2
		fhi = l.logOver(hi, p, least)
	}
	side := 0
	for hi-lo > max(l.block/16, lo*5e-4) {
		x := (lo*fhi - hi*flo) / (fhi - flo)
		if !(x > lo && x < hi) || fhi < -20 {
			x = (lo + hi) / 2
		}
		f := l.logOver(x, p, least)
		if f > 0 {
			lo, flo = x, f
			if side > 0 {
				fhi /= 2
			}
			side = 1
			continue
		}
		hi, fhi = x, f
		if side < 0 {
			flo /= 2
		}
		side = -1
	}
	return hi
}

// logOver is the logarithm of the probability of more than x over p.
func (l *peakLaw) logOver(x, p, least float64) float64 {
	return math.Log(max(l.sum(x, least), 1e-300) / p)
}
