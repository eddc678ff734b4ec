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
// comes by a handover, which is late with the probability that the measured times
// give its slack. Without a promise, or with one that is lost already, nothing can
// be missed.
func (h *Handover) noteRise(r *request, tier string, promised bool) {
	e := r.engine
	in := &e.ins
	in.exposure.Add(tier, r.slack, promised)
	if !h.priced() || in.why == "" {
		return
	}
	late := 0.0
	if age := h.awaited(e, e.pred.Adds(r.live)); promised {
		late = h.times.Goes(age, r.slack)
		h.meet(e, r.slack, h.missPrice(tier))
	}
	b := &in.book
	i := &b.intervals[which(h.off)]
	b.arrivals++
	i.Arrivals++
	room := e.usable()
	switch need := e.needsRoom(); {
	case need > room:
		b.short++
		i.Short++
	case need > room-e.withheld():
		b.covered++
	}
	had, shadow := late*e.lacks(room, r.slack), late*e.lacks(room-e.withheld(), r.slack)
	b.misses += had
	b.shadowMisses += shadow
	b.saved += (shadow - had) * h.missPrice(tier)
}

// lacks is the probability that the engine's need still exceeds that room when a
// slack is over: others may have left by then.
func (e *engine) lacks(room Bytes, slack time.Duration) float64 {
	none, some := e.pred.Leaving(slack)
	switch need := e.needsRoom(); {
	case need <= room:
		return 0
	case need-some <= room:
		return none
	}
	return 1
}

// awaited is the age of the handover that a request waits for which needs so
// much: that of the one under way where it brings enough, else 0, since a new one
// replaces it. How often it does is learned.
func (h *Handover) awaited(e *engine, need Bytes) time.Duration {
	age := h.underWay(e)
	if age == 0 {
		return 0
	}
	rides := 0.0
	for _, d := range e.devices {
		if e.on(d, e.target+need) > e.on(d, e.kv())+max(0, d.free())+d.coming() {
			age = 0
		}
	}
	if age > 0 {
		rides = 1
	}
	e.ins.rides += (rides - e.ins.rides) / ridesMemory
	return age
}

// ridesMemory is how many requests that met a handover the share of those counts
// which it brings enough for.
const ridesMemory = 50

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
