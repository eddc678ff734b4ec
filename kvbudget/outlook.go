package kvbudget

import (
	"math"
	"time"
)

// mostRise bounds a rise, so that no sum with one overflows.
const mostRise = float64(64 * mostNeed)

// Outlook is the distribution of the largest need within a horizon, as of the
// moment that it was made.
type Outlook struct {
	// Need is the KV needed at its start, which the largest is never below.
	Need   Bytes
	law    peakLaw
	look   *lookout
	regime int
	// byLaw is the law's rise at tunedLevel, where it is known already.
	byLaw float64
	known bool
}

// Outlook looks over the i-th horizon. It costs two look-ups a live request and
// allocates nothing. Read it before the Forecaster takes its next event.
func (f *Forecaster) Outlook(at time.Duration, i int) Outlook {
	f.settle(at)
	o := &f.looks[i]
	law := f.law(at, i)
	if i == 0 {
		f.flow = law.counts.Mean / o.horizon.Seconds()
	}
	regime := f.ranks.regime(at, f.need, f.tokenBytes())
	if f.rates.burst(at) {
		regime += loads
	}
	out := Outlook{Need: f.need, law: law, look: o, regime: regime}
	if f.rates.started { // before anybody came nothing is known, so nothing can be wrong
		out.byLaw, out.known = o.keep(at, &law, f.need, regime)
	}
	return out
}

// Quantile is the KV that the largest need within the horizon does not exceed,
// with probability q of (0, 1).
func (o *Outlook) Quantile(q float64) Bytes {
	rise := o.byLaw
	if !o.known || q != tunedLevel {
		rise = o.law.rise(o.look.levels.exceed(o.regime, q))
	}
	if w := o.look.usual.share(); w > 0.01 {
		rise += w * (o.look.usual.rise(q, o.law.block) - rise)
	}
	return o.blocks(rise)
}

// Assumed is the same quantile without the correction by past forecasts.
func (o *Outlook) Assumed(q float64) Bytes { return o.blocks(o.law.rise(1 - q)) }

// blocks is the need after a rise: whole blocks more than now, since need moves
// in those.
func (o *Outlook) blocks(rise float64) Bytes {
	return o.Need + Bytes(min(rise, mostRise)).FloorTo(Bytes(o.law.block))
}

// At is the probability that the largest need stays below b, and that it does
// not exceed it; they differ, since need moves in blocks.
func (o *Outlook) At(b Bytes) (below, upTo float64) {
	if b < o.Need {
		return 0, 0
	}
	more, orMore := o.law.atBlock(float64(b - o.Need))
	if b > o.Need {
		below = o.look.levels.share(o.regime, orMore)
	}
	return below, o.look.levels.share(o.regime, more)
}

// law sums over live requests and arrivals.
func (f *Forecaster) law(at time.Duration, i int) peakLaw {
	horizon := f.looks[i].horizon
	steps := f.speed.perSecond() * horizon.Seconds()
	more := int(math.Round(steps))
	l := peakLaw{
		counts: f.rates.Ahead(at, i, horizon), sizes: f.sizes, stay: 1,
		unit: float64(f.tokenBytes()), block: float64(f.cfg.Layout.grain()),
	}
	live := f.live
	if more == 0 {
		live = nil // nobody grows or ends that soon
	}
	for _, r := range live {
		n := r.asked.Sequences
		done := r.output / n
		grown := more
		if r.limit > 0 {
			grown = min(grown, r.limit-done)
		}
		stays := r.lengths.Still(done, more, r.limit)
		if end := r.asked.Answer; end > 0 {
			grown, stays = min(grown, max(end-done, 0)), 0
			if done+more < end {
				stays = 1
			}
		}
		if r.output > 0 && grown > 0 { // one that ends grows half as far on average
			l.grow += max(0, float64(f.bytes(r, float64(r.output)+float64(grown*n))-r.held)) * (1 + stays) / 2
		}
		held := float64(f.Adds(r)) // what others use too stays when it ends
		l.fall += (1 - stays) * held
		l.fallVar += stays * (1 - stays) * held * held
	}
	if steps >= 1 {
		l.stay = min(max(f.answers.all.meanWithin(int(steps))/math.Floor(steps), 0.05), 1)
	}
	mean := f.sizes.mean()
	growth := f.answers.all.meanWithin(more/2) * l.unit
	l.size = mean*l.unit + growth
	l.sizeVar = max(0, f.sizes.second()-mean*mean) * l.unit * l.unit
	return l
}
