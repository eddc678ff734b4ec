package kvbudget

import (
	"math"
	"time"
)

// rateScales are the memories that Rates tries, from within a burst to within
// minutes; fanos the clustering inside one window, variance over mean.
var (
	rateScales = [rateCount]time.Duration{time.Second, 4 * time.Second, 16 * time.Second, 64 * time.Second, 256 * time.Second}
	fanos      = [fanoCount]float64{1, 3, 10, 30}
)

const (
	rateCount, fanoCount = 5, 4
	experts              = rateCount * fanoCount
	// A memory's rate is its next longer one's, worth priorArrivals, before it has
	// seen any; the longest one's is priorRate, which it forgets.
	priorRate, priorArrivals = 1.0, 0.5
	leastShape               = 1e-12 // keeps a rate that has faded away a number
	// scoreMemory is the windows that an expert is judged by.
	scoreMemory = 400.0
	// leastWindow is the shortest window that experts are judged by: shorter ones are
	// nearly all empty and say little for what they cost.
	leastWindow = 100 * time.Millisecond
	// catchUp bounds the empty windows that are scored one by one after a pause.
	catchUp = 64
)

// Rates predicts how many requests arrive within a horizon. Each expert is a
// gamma-Poisson forecast whose past is discounted at one time scale (West and
// Harrison, Bayesian Forecasting and Dynamic Models, ch. 10), widened by one
// degree of clustering; experts are averaged by their likelihood on past windows
// of the same length, discounted too, so that the mix follows the traffic:
// Poisson, drifting, or bursty at any of the scales.
type Rates struct {
	started     bool
	watched     bool // from first on, though nobody may have come
	first, last time.Duration
	n           [rateCount]float64 // discounted arrivals
	// beyond is the seconds that each memory counts for beyond its own, by the time of
	// day: a busy hour's seconds count for more. 0 while that says nothing.
	beyond  [rateCount]float64
	day     day
	windows []rateWindow
}

// rateWindow judges the experts on consecutive windows of one length.
type rateWindow struct {
	length time.Duration
	start  time.Duration
	count  int
	ahead  [experts]countLaw // said at the window's start
	score  [experts]float64  // discounted log likelihood
}

// NewRates judges its experts on windows of the given lengths, or leastWindow.
func NewRates(horizons []time.Duration) *Rates {
	r := &Rates{windows: make([]rateWindow, len(horizons)), day: newDay()}
	for i, h := range horizons {
		r.windows[i].length = max(h, leastWindow)
	}
	return r
}

// Add takes one arrival; at never goes back.
func (r *Rates) Add(at time.Duration) {
	r.watch(at)
	if !r.started {
		r.started, r.last = true, at
		for i := range r.windows {
			r.open(&r.windows[i], at)
		}
	}
	r.advance(at)
	for i := range r.n {
		r.n[i]++
	}
	for i := range r.windows {
		r.windows[i].count++
	}
	r.day.count++
}

// Clock says that it was so late in the day at a time. Without it the time of day
// says nothing.
func (r *Rates) Clock(at, ofDay time.Duration) {
	r.turnDay(at)
	r.day.set(at, ofDay)
}

// watch begins the time in which nobody came.
func (r *Rates) watch(at time.Duration) {
	if !r.watched {
		r.watched, r.first = true, at
	}
}

// Remove takes back one arrival that Add took at that time. A window that has
// closed since was judged with it.
func (r *Rates) Remove(at time.Duration) {
	for i, scale := range rateScales {
		r.n[i] = less(r.n[i], decay(r.last-at, scale), 1e-9)
	}
	for i := range r.windows {
		if w := &r.windows[i]; w.start <= at && w.count > 0 {
			w.count--
		}
	}
	r.day.take(at)
	if r.n == ([rateCount]float64{}) {
		r.started = false // nobody has come
	}
}

// advance closes windows that have ended and discounts the past.
func (r *Rates) advance(at time.Duration) {
	r.turnDay(at)
	r.closeAll(at)
	r.fade(at)
}

func (r *Rates) closeAll(at time.Duration) {
	for i := range r.windows {
		r.close(&r.windows[i], at)
	}
}

// turnDay ends the quarters of an hour that are over. Where the factor changes, what
// was before it is counted by the old one.
func (r *Rates) turnDay(at time.Duration) {
	for r.day.told && at >= r.day.ends {
		end, before := r.day.ends, r.day
		if r.day.turn(); r.started && r.day.factor != before.factor {
			after := r.day
			r.day = before
			r.closeAll(end)
			r.fade(end)
			r.day = after
		}
	}
}

func (r *Rates) discount(at time.Duration) {
	r.turnDay(at)
	r.fade(at)
}

func (r *Rates) fade(at time.Duration) {
	if d := at - r.last; d > 0 {
		for i, scale := range rateScales {
			kept := decay(d, scale)
			r.n[i] *= kept
			r.beyond[i] = r.extra(i, kept)
		}
		r.last = at
	}
}

// extra is beyond after a time of which kept is left in the i-th memory.
func (r *Rates) extra(i int, kept float64) float64 {
	return r.beyond[i]*kept + (r.day.factor-1)*rateScales[i].Seconds()*(1-kept)
}

// close scores every window that ended by at. Within a long pause only the first
// windows are scored: by then every expert has seen it.
func (r *Rates) close(w *rateWindow, at time.Duration) {
	for range catchUp {
		end := w.start + w.length
		if at < end {
			return
		}
		for e := range w.score {
			w.score[e] += w.ahead[e].log(w.count) - w.score[e]/scoreMemory
		}
		r.open(w, end)
	}
	if at >= w.start+w.length {
		r.open(w, at)
	}
}

// open begins a window: every expert says its law for it.
func (r *Rates) open(w *rateWindow, start time.Duration) {
	w.start, w.count = start, 0
	w.ahead = r.laws(start, w.length)
}

// laws are the experts' predictions as of at, which may lie between the last
// arrival and now.
func (r *Rates) laws(at, window time.Duration) (laws [experts]countLaw) {
	seen := max(at-r.first, time.Second).Seconds() // so that a first arrival is no infinite rate
	rate := priorRate                              // of the next longer memory, the prior of each
	ahead := r.day.ahead(at, window)
	for i := rateCount - 1; i >= 0; i-- {
		scale := rateScales[i]
		s := scale.Seconds()
		gone, prior := math.Exp(-seen/s), priorArrivals
		if i == rateCount-1 { // what nobody saw is forgotten too
			prior *= gone
		}
		kept := decay(at-r.last, scale)
		shape := max(r.n[i]*kept+prior, leastShape)
		rate = shape / (s*(1-gone) + r.extra(i, kept) + prior/rate)
		mean := rate * window.Seconds() * ahead
		for k, fano := range fanos {
			laws[i*fanoCount+k] = countLaw{mean: mean, size: mean / (fano - 1 + mean/shape)}
		}
	}
	return laws
}

// Ahead predicts the arrivals within a horizon, by the experts as the i-th
// window has judged them.
func (r *Rates) Ahead(at time.Duration, i int, horizon time.Duration) (c Counts) {
	r.watch(at)
	if !r.started {
		c.P[0] = 1
		return c
	}
	r.advance(at)
	w := &r.windows[i]
	laws := r.laws(at, horizon)
	weights := w.weights()
	var second float64
	for e, law := range laws {
		law.add(&c, weights[e])
		c.Mean += weights[e] * law.mean
		second += weights[e] * (law.mean + law.mean*law.mean*(1+1/law.size))
	}
	c.Var = max(0, second-c.Mean*c.Mean)
	c.tail(second)
	return c
}

// weights are the experts' shares by their scores (log-sum-exp).
func (w *rateWindow) weights() (share [experts]float64) {
	top := math.Inf(-1)
	for _, s := range w.score {
		top = max(top, s)
	}
	sum := 0.0
	for e, s := range w.score {
		share[e] = math.Exp(s - top)
		sum += share[e]
	}
	for e := range share {
		share[e] /= sum
	}
	return share
}
