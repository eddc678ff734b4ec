package handover

import (
	"math"
	"time"
)

// book is what a priced reserve has cost and brought since the start, beside a
// shadow ledger in which it was 0 on the same arrivals. In the shadow training
// holds the reserve's bytes too, and the bound is lower by them.
type book struct {
	at      At
	samples float64 // displaced
	spent   float64 // their price

	arrivals uint64
	covered  uint64 // found room only because of the reserve
	short    uint64 // found no room all the same
	// misses are sums of probabilities, by the times that handovers took until then:
	// of the requests that found no room in the shadow, and in the ledger.
	shadowMisses, misses float64
	saved                float64 // the difference, each at its own price
	// intervals compare the times with a reserve and those without one.
	intervals [2]Interval
}

// Interval is what was seen with the reserve or while it was off.
type Interval struct {
	Took     time.Duration `json:"took_ns"`
	Arrivals uint64        `json:"arrivals"`
	// Short is how many of the arrivals found no room.
	Short uint64 `json:"short"`
}

// index of intervals.
const (
	with = iota
	without
)

func which(off bool) int {
	if off {
		return without
	}
	return with
}

// withheld is what the reserve keeps from training now: the engine may hold it
// and training would hold it if the reserve were 0.
func (e *engine) withheld() Bytes { return max(0, min(e.ins.reserve, e.bound-e.ins.base)) }

// accrue adds the time since it was last called to the engine's book.
func (h *Handover) accrue(e *engine) {
	b := &e.ins.book
	took := h.now - b.at
	b.at = h.now
	displaced := float64(e.withheld()) * e.ins.perByte * took.Seconds()
	b.samples += displaced
	b.spent += displaced * h.prices.Sample
	b.intervals[which(h.off)].Took += took
	owing := 0.0
	if e.ins.owed {
		owing = 1
	}
	e.ins.owing += (1 - math.Exp(-took.Seconds()/owingMemory.Seconds())) * (owing - e.ins.owing)
}

// owingMemory is the time constant of the share of the time in which a handover
// is under way.
const owingMemory = time.Minute

// noteRise looks at the room that a request finds as it arrives, before anything
// is ordered for it: with the reserve, and in the shadow without. What it lacks
// comes by a handover, a new one or the one that is under way, which is late with
// the probability that the measured times give its slack, unless others are expected to have left enough by then. Without
// a promise nothing can be missed.
func (h *Handover) noteRise(r *request, tier string, promised bool) {
	e := r.engine
	in := &e.ins
	in.exposure.Add(tier, r.slack, promised)
	if !h.priced() || in.why == "" {
		return
	}
	b := &in.book
	need, room := e.needsRoom(), e.usable()
	late := 0.0
	if promised {
		late = h.times.Goes(h.underWay(e), r.slack)
	}
	none, some := e.pred.Leaving(r.slack)
	missed := func(room Bytes) float64 { // when its slack is over
		switch {
		case need <= room:
			return 0
		case need-some <= room:
			return late * none
		}
		return late
	}
	i := &b.intervals[which(h.off)]
	b.arrivals++
	i.Arrivals++
	if need > room {
		b.short++
		i.Short++
	} else if need > room-e.withheld() {
		b.covered++
	}
	had, shadow := missed(room), missed(room-e.withheld())
	b.misses += had
	b.shadowMisses += shadow
	b.saved += (shadow - had) * h.missPrice(tier)
}

// underWay is how long the oldest shrink on the engine's devices has been owed, 0
// where none is.
func (h *Handover) underWay(e *engine) time.Duration {
	age := time.Duration(0)
	for _, d := range e.devices {
		for _, t := range d.trainers {
			if c := t.change; t.open && c != nil && c.shrink {
				age = max(age, h.now-c.since)
			}
		}
	}
	return age
}
