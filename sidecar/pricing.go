package sidecar

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/slo"
	"github.com/lull-project/lull/trainer"
)

// mostLost bounds the work that a trainer may say it has lost.
const mostLost = 100 * 365 * 24 * time.Hour

// pricesEvery is how often the clock on the wall is asked for other prices.
const pricesEvery = time.Second

// pricing tells the core what samples and misses cost at this hour, and when an
// interval without a reserve begins and ends. Its methods run on the loop's
// goroutine.
type pricing struct {
	prices config.Prices
	zone   *time.Location
	// draw is uniform in [0, 1).
	draw func() float64

	misses atomic.Pointer[map[string]float64] // prices of list by tier, "" for the others; read by the relays too

	told   bool // the core knows the list in force
	list   config.PriceList
	lookAt handover.At

	day daytime

	prefillAt handover.At // when it is looked at again what prefill takes

	off    bool
	turnAt handover.At // when off turns, 0 never
}

func newPricing(p config.Prices, zone *time.Location, draw func() float64) *pricing {
	return &pricing{prices: p, zone: zone, draw: draw}
}

// set takes another config over.
func (p *pricing) set(prices config.Prices, zone *time.Location) {
	p.prices, p.zone, p.told, p.turnAt = prices, zone, false, 0
}

// news is what the core is to hear now, in order; nothing most of the time, and
// never anything where nothing was ever priced.
func (p *pricing) news(at handover.At, wall time.Time) []handover.Event {
	var out []handover.Event
	if list, changed := p.listAt(at, wall); changed {
		misses := map[string]float64{}
		for _, t := range list.Tiers {
			misses[t.Name] = t.Miss
		}
		out = append(out, handover.Priced{At: at, Sample: list.Sample, Miss: list.Miss, Prefill: list.Prefill, Tiers: misses})
	}
	if p.turn(at) {
		out = append(out, handover.ReserveOff{At: at, Off: p.off})
	}
	return out
}

// listAt is the list in force and whether the core has yet to hear it.
func (p *pricing) listAt(at handover.At, wall time.Time) (config.PriceList, bool) {
	if p.told && at < p.lookAt {
		return p.list, false
	}
	p.lookAt = at + pricesEvery
	list := p.prices.At(slo.MomentOf(wall.In(p.zone)))
	if p.told && list.Sample == p.list.Sample && list.Miss == p.list.Miss && list.Prefill == p.list.Prefill && slices.Equal(list.Tiers, p.list.Tiers) {
		return list, false
	}
	before := p.list
	p.list, p.told = list, true
	misses := map[string]float64{"": list.Miss}
	for _, t := range list.Tiers {
		misses[t.Name] = t.Miss
	}
	p.misses.Store(&misses)
	return list, list.Sample > 0 || before.Sample > 0
}

// missPrice is what a miss of a tier costs at this hour.
func (l *loop) missPrice(tier string) float64 {
	misses := l.pricing.misses.Load()
	if misses == nil {
		return 0
	}
	if price, ok := (*misses)[tier]; ok {
		return price
	}
	return (*misses)[""]
}

// turn says that off has changed. The intervals between those without a reserve
// are exponential, so that no traffic can be in step with them.
func (p *pricing) turn(at handover.At) bool {
	wanted := p.prices.OffShare > 0 && p.prices.Priced()
	switch {
	case !wanted && !p.off:
		return false
	case !wanted:
		p.off, p.turnAt = false, 0
		return true
	case p.turnAt == 0:
		p.turnAt = at + p.between()
		was := p.off
		p.off = false
		return was
	case at < p.turnAt:
		return false
	}
	p.off = !p.off
	if p.off {
		p.turnAt = at + p.prices.OffFor
	} else {
		p.turnAt = at + p.between()
	}
	return true
}

// prefill is what a token of a prompt takes, once every pricesEvery where that has a
// price.
func (p *pricing) prefill(at handover.At, s *score) (took time.Duration, due bool) {
	if p.list.Prefill <= 0 || at < p.prefillAt || s == nil {
		return 0, false
	}
	p.prefillAt = at + pricesEvery
	return s.prefillPerToken(), true
}

// between is the time until the next interval without a reserve.
func (p *pricing) between() time.Duration {
	mean := p.prices.OffFor.Seconds() * (1 - p.prices.OffShare) / p.prices.OffShare
	return max(time.Duration(-math.Log(1-p.draw())*mean*float64(time.Second)), time.Millisecond)
}

// tellPrices lets the core hear what has changed.
func (l *loop) tellPrices() {
	if l.core == nil {
		return
	}
	for _, ev := range l.pricing.news(l.now(), l.clock()) {
		l.step(ev)
	}
	if ofDay, due := l.pricing.day.news(l.now(), l.clock().In(l.pricing.zone)); due {
		l.step(handover.ClockSeen{At: l.now(), OfDay: ofDay})
	}
	if took, due := l.pricing.prefill(l.now(), l.view.score); due {
		l.step(handover.PrefillSeen{At: l.now(), PerToken: took})
	}
}

// ratedEvent is a report's rate curve and lost work in the core's words.
func ratedEvent(at handover.At, id handover.TrainerID, r trainer.Report) handover.Event {
	lost := min(max(r.WorkLostSampleSeconds, 0), mostLost.Seconds())
	ev := handover.TrainerRated{At: at, Trainer: id, WorkLost: time.Duration(lost * float64(time.Second))}
	for _, p := range r.RateCurve {
		ev.Curve = append(ev.Curve, handover.Rate{Bytes: p.Bytes, SamplesPerSecond: p.SamplesPerSec})
	}
	return ev
}
