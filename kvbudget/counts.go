package kvbudget

import "math"

// countTerms is how many counts have their own probability; what is beyond is one
// term with its mean and variance.
const countTerms = 6

// countLaw is a negative binomial count: mean and size (variance is mean +
// mean²/size).
type countLaw struct{ mean, size float64 }

// Counts is the predicted number of arrivals within a horizon.
type Counts struct {
	// P holds the probability of 0, 1, ... arrivals, and Tail that of more, whose
	// mean and variance are TailMean and TailVar.
	P                       [countTerms]float64
	Tail, TailMean, TailVar float64
	Mean, Var               float64
}

// add puts the law's first probabilities into c, by the recursion
// P(k+1) = P(k)·(k+size)/(k+1)·mean/(mean+size).
func (l countLaw) add(c *Counts, weight float64) {
	if weight < 1e-6 {
		weight = 0
	}
	p := weight * math.Exp(-l.size*math.Log1p(l.mean/l.size))
	ratio := l.mean / (l.mean + l.size)
	for k := range c.P {
		c.P[k] += p
		p *= (float64(k) + l.size) / float64(k+1) * ratio
	}
}

// log is the log probability of a count.
func (l countLaw) log(count int) float64 {
	p := -l.size * math.Log1p(l.mean/l.size)
	if count == 0 {
		return p
	}
	k := float64(count)
	a, _ := math.Lgamma(k + l.size)
	b, _ := math.Lgamma(l.size)
	f, _ := math.Lgamma(k + 1)
	return p + a - b - f + k*math.Log(l.mean/(l.mean+l.size))
}

// tail is what the terms leave: mass, mean and variance.
func (c *Counts) tail(second float64) {
	m0, m1, m2 := 1.0, c.Mean, second
	for k, p := range c.P {
		x := float64(k)
		m0, m1, m2 = m0-p, m1-p*x, m2-p*x*x
	}
	if m0 < 1e-9 {
		return
	}
	c.Tail = m0
	c.TailMean = max(countTerms, m1/m0)
	c.TailVar = max(0, m2/m0-c.TailMean*c.TailMean)
}
