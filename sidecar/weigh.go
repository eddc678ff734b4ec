package sidecar

import (
	"time"

	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/proxy"
	"github.com/lull-project/lull/slo"
)

const (
	// trialEvery is how long the duty stays up or down. A gap takes tens of
	// milliseconds, a load some seconds to change.
	trialEvery = time.Second
	// trialBy is by what part of itself the duty is moved. Less is measured more slowly,
	// more is felt.
	trialBy = 0.15
)

// weigh sets training's duty by its price (interference.pace: priced): where the duty's
// worth to training and its cost to requests are known, their optimum, else the pacer's
// word. Its methods run under compute.mu.
type weigh struct {
	contention slo.Contention
	draw       func() float64
	worth      float64 // of the whole device's time to training, a second
	priced     bool    // there are prices, whatever the worth
	share      slo.Share

	trialAt handover.At
	up      bool
	resting bool
	began   float64 // area at trialAt
	// area is the integral of the duty over time, up to areaAt; now is the duty in force.
	area   float64
	areaAt handover.At
	now    float64
}

func newWeigh(draw func() float64) *weigh {
	return &weigh{draw: draw, now: 1, resting: true, share: slo.Share{Why: slo.ShareUnpriced}}
}

// step is the duty for now. paced is what the pacer says, and stands as it is while
// nothing is priced or nobody decodes.
func (w *weigh) step(at handover.At, paced, floor float64, decoding int, yielding bool) float64 {
	w.spend(at)
	duty := paced
	switch {
	case w.worth <= 0 || decoding == 0:
		if !w.resting {
			w.contention.Rest()
		}
		w.resting = true
		w.share = w.contention.Choose(at, w.worth, floor)
	default:
		if w.resting || at-w.trialAt >= trialEvery {
			w.turn(at, floor)
		}
		if w.share.Why == slo.SharePriced {
			duty = w.share.Duty
		}
		duty = moved(duty, floor, w.up)
	}
	w.now = duty
	if yielding {
		w.now = 0
	}
	return duty
}

// turn ends a trial and begins another.
func (w *weigh) turn(at handover.At, floor float64) {
	mean := w.now
	if took := (at - w.trialAt).Seconds(); took > 0 {
		mean = (w.area - w.began) / took
	}
	if w.resting {
		w.resting = false
		w.contention.Rest()
	}
	w.up = w.contention.Turn(at, mean, w.draw())
	w.trialAt, w.began = at, w.area
	w.share = w.contention.Choose(at, w.worth, floor)
}

// moved is a duty a little up or down, within its limits.
func moved(duty, floor float64, up bool) float64 {
	by := 1 - trialBy
	if up {
		by = 1 + trialBy
	}
	return min(max(duty*by, floor), 1)
}

// spend adds the time until now to area.
func (w *weigh) spend(at handover.At) {
	w.area += w.now * (at - w.areaAt).Seconds()
	w.areaAt = at
}

// mark is where a request's mean duty begins.
type mark struct {
	at   handover.At
	area float64
}

// mark is that of a request that comes now.
func (c *compute) mark(at handover.At) mark {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.weigh == nil {
		return mark{at: at}
	}
	return mark{at, c.weigh.area + c.weigh.now*(at-c.weigh.areaAt).Seconds()}
}

// ended counts a request: used is the part of its promise that it used up, price what
// its miss costs.
func (c *compute) ended(at handover.At, from mark, used, price float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.weigh
	if w == nil || used <= 0 {
		return
	}
	duty := w.now
	if took := (at - from.at).Seconds(); took > 0 {
		duty = min(max((w.area+w.now*(at-w.areaAt).Seconds()-from.area)/took, 0), 1)
	}
	w.contention.Ended(at, used, duty, price)
}

// setWorth takes what the whole device's time is worth to training, a second, and
// whether there are prices to say so.
func (c *compute) setWorth(worth float64, priced bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.weigh != nil {
		c.weigh.worth, c.weigh.priced = worth, priced
	}
}

// used is the part of its promise that a request used up, by its TTFT without held time
// and its mean gap, whichever is more; 0 where it shows nothing of training's part.
func used(p *promise, r proxy.Record) (most float64) {
	if p == nil || r.Failed() {
		return 0
	}
	if ttft, ok := r.TTFT(); ok {
		if limit := p.TTFT.For(p.promptTokens); limit > 0 {
			most = float64(ttft-r.Held) / float64(limit)
		}
	}
	if mean, ok := r.TPOT(); ok && p.TPOT > 0 {
		most = max(most, float64(mean)/float64(p.TPOT))
	}
	return most
}

// trainingWorth is what training makes of the whole device's time, a second, in the
// currency of the prices; 0 where nothing is priced or no job has told its speed.
func (l *loop) trainingWorth() float64 {
	if l.core == nil || l.pricing.list.Miss <= 0 {
		return 0
	}
	return l.pricing.list.Sample * l.core.TrainingSpeed()
}

// tellShare lets the core hear what share of the device's time training has: a byte is
// worth less to a job that stands still half of the time.
func (l *loop) tellShare(a advice) {
	if l.core == nil {
		return
	}
	duty := a.duty
	if a.yield {
		duty = 0
	}
	l.step(handover.TrainingShare{At: l.now(), Duty: duty})
}

// DutyState is training's share of the device's time, and what it follows from.
type DutyState struct {
	// Duty is the share that trainers were told last, 0 while they yield.
	Duty float64 `json:"duty"`
	// Why is priced, no_prices, unrated, no_slope or few_requests where interference.pace is
	// priced: all but priced leave the duty to the mean gap, as with auto.
	Why string `json:"why,omitempty"`
	// ToTraining and ToRequests are the shadow prices of one more point (a hundredth) of
	// duty, a second.
	ToTraining float64 `json:"point_to_training_per_second"`
	ToRequests float64 `json:"point_to_requests_per_second"`
	// Slope is by how much the mean of gap over limit rises from no training to all of it,
	// SlopeErr its standard error, Pairs the trials and Requests the requests behind it.
	Slope    float64 `json:"gap_slope"`
	SlopeErr float64 `json:"gap_slope_error"`
	Pairs    float64 `json:"trials"`
	Requests int     `json:"requests"`
}

// state is what the admin API shows, nil where nothing is paced or yields.
func (c *compute) state() *DutyState {
	if !c.active() {
		return nil
	}
	out := &DutyState{Duty: c.said.duty}
	if c.said.yield {
		out.Duty = 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.weigh != nil {
		s := c.weigh.share
		out.Why, out.ToTraining, out.ToRequests = s.Why, s.ToTraining, s.ToRequests
		if s.Why == slo.ShareUnpriced && c.weigh.priced {
			out.Why = slo.ShareUnrated
		}
		out.Slope, out.SlopeErr, out.Pairs, out.Requests = s.Slope, s.Err, s.Pairs, s.Requests
	}
	return out
}
