package sidecar

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/slo"
	"github.com/lull-project/lull/trainer"
)

const (
	// computeEvery is how often pressure is looked at while requests run: a block of
	// training takes milliseconds, so a later look would be felt.
	computeEvery = 10 * time.Millisecond
	// yieldLease ends a yield that is not renewed: a sidecar that dies stops nobody
	// for longer. It is renewed at half of it.
	yieldLease = 200 * time.Millisecond
	// paceLease does the same for a duty cycle.
	paceLease = 2 * time.Second
	// paceStep is the change of the duty that is worth a message.
	paceStep = 0.02
)

// compute keeps training's computing out of the requests' way: at once, by
// yielding while a request's slack is short, and over seconds, by a duty cycle.
// All but gap runs on the loop's goroutine.
type compute struct {
	draw    func() float64
	yields  bool
	pace    atomic.Bool // read by the relays too
	yielder slo.Yielder

	mu    sync.Mutex // guards pacer and weigh: gaps come from the relays
	pacer slo.Pacer
	weigh *weigh // nil but for pace: priced

	lastAt handover.At
	// said is what trainers were told last, and when.
	said   advice
	saidAt handover.At
}

// advice is what a trainer is to do with its share of the device's time.
type advice struct {
	yield bool
	duty  float64
}

// newCompute watches nothing where nothing is promised: nobody can be late.
// draw is uniform in [0, 1).
func newCompute(promised bool, c config.Interference, draw func() float64) *compute {
	out := &compute{draw: draw, yielder: slo.DefaultYielder(), pacer: slo.DefaultPacer()}
	out.said.duty = 1
	out.set(promised, c)
	return out
}

// set takes another config over. What trainers were told by the last one ends with
// its lease.
func (c *compute) set(promised bool, to config.Interference) {
	c.yields = promised && to.Yield == config.Auto
	c.pace.Store(promised && to.Pace != config.Never)
	c.yielder.Floor = min(to.ProgressFloor, 0.5)
	c.mu.Lock()
	c.pacer.Floor = to.ProgressFloor
	switch {
	case to.Pace != config.Priced:
		c.weigh = nil
	case c.weigh == nil:
		c.weigh = newWeigh(c.draw)
	}
	c.mu.Unlock()
}

// active says whether there is anything to watch.
func (c *compute) active() bool { return c.yields || c.pace.Load() }

// gap takes one gap that a client saw and what it was promised.
func (c *compute) gap(p *promise, d time.Duration) {
	if !c.pace.Load() || p == nil {
		return
	}
	c.mu.Lock()
	c.pacer.Gap(d, p.TBT)
	if c.weigh != nil {
		c.weigh.contention.Gap(d, p.TBT)
	}
	c.mu.Unlock()
}

func (c *compute) due(at handover.At, live int) bool {
	// Once more after the last request has gone: to let training go on.
	return c.active() && at-c.lastAt >= computeEvery && (live > 0 || c.said != advice{duty: 1})
}

// advise decides for a moment. pressure is the highest of the live requests,
// decoding how many of them have a first token and a TBT limit.
func (c *compute) advise(at handover.At, pressure float64, decoding int) advice {
	c.lastAt = at
	a := advice{duty: 1}
	if c.yields {
		a.yield = c.yielder.Step(at, pressure)
	}
	if c.pace.Load() {
		c.mu.Lock()
		a.duty = c.pacer.Step(at, decoding)
		if c.weigh != nil {
			a.duty = c.weigh.step(at, a.duty, c.pacer.Floor, decoding, a.yield)
		}
		c.mu.Unlock()
	}
	return a
}

// message is what is to be sent now, nil when trainers know it already.
func (c *compute) message(at handover.At, a advice) trainer.Message {
	age := at - c.saidAt
	switch {
	case a.yield:
		if c.said.yield && age < yieldLease/2 {
			return nil
		}
	case c.said.yield: // let go at once
	case a.duty >= 1 && c.said.duty >= 1:
		return nil
	case abs(a.duty-c.said.duty) < paceStep && a.duty < 1 && age < paceLease/2:
		return nil
	}
	c.said, c.saidAt = a, at
	if a.yield {
		return trainer.Yield{Lease: yieldLease, Reason: "slack"}
	}
	if a.duty >= 1 {
		return trainer.Pace{Duty: 1, Reason: "requests have slack"}
	}
	return trainer.Pace{Duty: a.duty, Reason: "tbt", Lease: paceLease}
}

func abs(v float64) float64 { return max(v, -v) }

// advise looks at the live requests and tells every trainer that is connected.
// Trainers that connect later hear it at the next renewal.
func (l *loop) advise() {
	at := l.now()
	pressure, decoding := l.requests.pressure(at, l.view.score.predictedPrefill)
	before := l.compute.said
	l.compute.setWorth(l.trainingWorth(), l.pricing.list.Miss > 0)
	m := l.compute.message(at, l.compute.advise(at, pressure, decoding))
	if m == nil {
		return
	}
	now := l.compute.said
	l.metrics.TrainingAdvice(now.yield, now.duty, now.yield && !before.yield)
	l.tellShare(now)
	for _, t := range l.trainers {
		if t.session == nil {
			continue
		}
		if err := t.session.Send(m); err != nil {
			l.log.Debug("trainer not told to leave the device's time to requests", "trainer", t.id, "err", err)
		}
	}
}
