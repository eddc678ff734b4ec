package kvbudget

import (
	"math"
	"time"
)

const (
	// arrivalMemory is the time constant of the rate: long against one burst,
	// short against the minutes in which load changes.
	arrivalMemory = 20 * time.Second
	// arrivalBin is the window of the counts that over-dispersion is read from.
	arrivalBin = 250 * time.Millisecond
	// binDecay makes the dispersion remember about 100 windows.
	binDecay = 0.99
	// priorBins is how many windows of plain Poisson arrivals the prior is worth.
	priorBins = 8.0
)

// Arrivals is the need that arrives: a compound Poisson process with learned
// rate and sizes, its variance widened by the index of dispersion of counts
// (Fano factor), which is above 1 for bursty traffic (Cox and Lewis, The
// Statistical Analysis of Series of Events, 1966).
type Arrivals struct {
	started  bool
	first    time.Duration
	last     time.Duration
	n, s1    float64 // decayed count, bytes
	s2       float64 // decayed bytes squared
	binStart time.Duration
	binCount float64
	bins     float64 // decayed number of windows
	c1, c2   float64 // decayed sum of counts and of their squares
}

// Add takes one arrival of b bytes of need; at never goes back.
func (a *Arrivals) Add(at time.Duration, b Bytes) {
	if !a.started {
		a.started, a.first, a.last, a.binStart = true, at, at, at
	}
	a.closeBins(at)
	f := decay(at-a.last, arrivalMemory)
	x := float64(b)
	a.n, a.s1, a.s2 = a.n*f+1, a.s1*f+x, a.s2*f+x*x
	a.last = at
	a.binCount++
}

// Remove takes back one arrival that Add took at that time: what is left of its
// weight. Its count stays in the dispersion, which forgets within seconds and has
// no sizes.
func (a *Arrivals) Remove(at time.Duration, b Bytes) {
	f := decay(a.last-at, arrivalMemory)
	x := float64(b)
	a.n, a.s1, a.s2 = less(a.n, f, 1e-6), less(a.s1, x*f, 1), less(a.s2, x*x*f, 1)
}

// less is sum - x, and 0 where only rounding is left of it.
func less(sum, x, least float64) float64 {
	if d := sum - x; d > max(least, sum*1e-12) {
		return d
	}
	return 0
}

// Rate is the arrivals and the bytes of need a second, as of at.
func (a *Arrivals) Rate(at time.Duration) (perSecond, bytesPerSecond float64) {
	if !a.started {
		return 0, 0
	}
	f := decay(at-a.last, arrivalMemory)
	w := a.window(at)
	return a.n * f / w, a.s1 * f / w
}

// Dispersion is the variance of counts over their mean, at least 1.
func (a *Arrivals) Dispersion() float64 {
	if a.bins == 0 || a.c1 == 0 {
		return 1
	}
	mean := a.c1 / a.bins
	variance := max(0, a.c2/a.bins-mean*mean)
	return max(1, (variance/mean*a.bins+priorBins)/(a.bins+priorBins))
}

// Quantile is the bytes of need that arrive within the horizon, not exceeded
// with probability q. The sum is taken as a gamma variable of the same mean and
// variance, its quantile by Wilson and Hilferty (1931).
func (a *Arrivals) Quantile(at, horizon time.Duration, q float64) Bytes {
	if !a.started || horizon <= 0 {
		return 0
	}
	a.closeBins(at)
	f := decay(at-a.last, arrivalMemory)
	w := a.window(at)
	h := horizon.Seconds()
	mean := a.s1 * f / w * h
	variance := a.s2 * f / w * h * a.Dispersion()
	return Bytes(gammaQuantile(mean, variance, q))
}

// window is the seconds of memory behind the decayed sums: the time constant,
// less what had not happened yet; at least one second's worth, so that a first
// arrival is not an infinite rate.
func (a *Arrivals) window(at time.Duration) float64 {
	seen := max(at-a.first, time.Second)
	return arrivalMemory.Seconds() * (1 - decay(seen, arrivalMemory))
}

func (a *Arrivals) closeBins(at time.Duration) {
	k := int64((at - a.binStart) / arrivalBin)
	if k <= 0 {
		return
	}
	a.bins, a.c1, a.c2 = a.bins*binDecay+1, a.c1*binDecay+a.binCount, a.c2*binDecay+a.binCount*a.binCount
	a.binCount = 0
	if k > 1 { // the windows in between were empty
		f := math.Pow(binDecay, float64(k-1))
		a.bins = a.bins*f + (1-f)/(1-binDecay)
		a.c1, a.c2 = a.c1*f, a.c2*f
	}
	a.binStart += time.Duration(k) * arrivalBin
}

func decay(d, constant time.Duration) float64 {
	return math.Exp(-max(0, d).Seconds() / constant.Seconds())
}

// gammaQuantile is the quantile of a gamma variable with that mean and variance.
func gammaQuantile(mean, variance, q float64) float64 {
	if mean <= 0 {
		return 0
	}
	if variance <= 0 {
		return mean
	}
	k := mean * mean / variance
	root := 1 - 1/(9*k) + normalQuantile(q)/(3*math.Sqrt(k))
	return mean * math.Pow(max(0, root), 3)
}

func normalQuantile(q float64) float64 { return math.Sqrt2 * math.Erfinv(2*q-1) }
