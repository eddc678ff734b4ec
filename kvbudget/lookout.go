package kvbudget

import "time"

// lookouts is how many forecasts of one horizon wait for their outcome at most;
// a new one is kept when 1/lookoutsPer of the horizon has passed, and leastApart.
const (
	lookouts    = 64
	lookoutsPer = 32
	leastApart  = 3 * time.Millisecond
)

// lookout judges the forecasts of one horizon by what came. It keeps the largest
// need since each, in segments between them, so that a change of need costs one
// comparison.
type lookout struct {
	horizon time.Duration
	ring    [lookouts]pending
	head, n int
	levels  recalibration
	usual   usual
	last    demand
}

type pending struct {
	at     time.Duration
	law    peakLaw
	need   Bytes
	regime int
	bar    float64 // the law's probability of more than the tuned level
	// byLaw and byUsual are the rises that the tuned level was put at.
	byLaw, byUsual float64
	most           Bytes // largest need from here to the next pending
}

// see takes the need from now on; everything due before now is judged first.
func (o *lookout) see(need Bytes) {
	if o.n > 0 {
		p := &o.ring[(o.head+o.n-1)%lookouts]
		p.most = max(p.most, need)
	}
}

// settle judges what is due by at.
func (o *lookout) settle(at time.Duration) {
	for p, most, ok := o.due(at); ok; p, most, ok = o.due(at) {
		o.judge(p, float64(most-p.need))
	}
}

// due takes the oldest forecast whose horizon ended before at, with the largest
// need within it.
func (o *lookout) due(at time.Duration) (p *pending, most Bytes, ok bool) {
	p = &o.ring[o.head]
	if o.n == 0 || p.at+o.horizon >= at {
		return nil, 0, false
	}
	for i := range o.n {
		most = max(most, o.ring[(o.head+i)%lookouts].most)
	}
	o.head, o.n = (o.head+1)%lookouts, o.n-1
	return p, most, true
}

// judge takes the rise that came. Need moves in whole blocks: a rise of k blocks
// is the law's from k to k+1.
func (o *lookout) judge(p *pending, rise float64) {
	more, orMore := p.law.atBlock(rise)
	o.levels.learn(p.regime, more, orMore, p.bar)
	o.usual.learn(rise, p.byLaw, p.byUsual, p.law.block)
}

// keep remembers a forecast, unless the last one is too near. It returns the
// law's rise at tunedLevel where it worked that out.
func (o *lookout) keep(at time.Duration, law *peakLaw, need Bytes, regime int) (byLaw float64, known bool) {
	if o.n == lookouts {
		return 0, false
	}
	if o.n > 0 && at-o.ring[(o.head+o.n-1)%lookouts].at < max(o.horizon/lookoutsPer, leastApart) {
		return 0, false
	}
	bar := o.levels.exceed(regime, tunedLevel)
	byLaw = law.rise(bar)
	o.ring[(o.head+o.n)%lookouts] = pending{
		at: at, law: *law, need: need, regime: regime, most: need,
		bar: bar, byLaw: byLaw, byUsual: o.usual.rise(tunedLevel, law.block),
	}
	o.n++
	return byLaw, true
}

// aim changes the horizon. Forecasts of the old one are judged no more.
func (o *lookout) aim(horizon time.Duration) {
	if horizon != o.horizon {
		o.horizon, o.head, o.n, o.last.known = horizon, 0, 0, false
	}
}
