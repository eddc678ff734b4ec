package handover

import (
	"math"
	"time"
)

const (
	// coursesMemory is the time constant with which what courses cost is forgotten.
	coursesMemory = 2 * time.Minute
	// A course replaces the one that is followed when it would have cost so much less:
	// a share of the other's cost, and so many shrinks. Below that it is luck, and each
	// change is a handover.
	courseGain, courseShrinks = 0.02, 2.0
)

// A course is one way to lend: how long an excess waits, by how much more than is
// needed a shrink takes, and whether there is a reserve.
type course struct {
	// rental is the wait in ski rentals (see patience), fixed the wait where that is 0.
	rental float64
	fixed  time.Duration
	// lot is what a shrink takes beyond the target: the S - s of an (s, S) policy.
	lot Bytes
	// bare is without the priced reserve.
	bare bool

	shadow
}

// shadow is how a course would have gone on the same demand, with handovers that
// take no time.
type shadow struct {
	bound Bytes
	calm  bool  // bound is too large; the excess is lent at until
	until At    // of calm
	most  Bytes // largest target since it is
	was   Bytes // bound before the first of its shrinks that may still be under way
	since At    // of that shrink, 0 none
	rate  float64
	cost  float64 // decayed: training displaced, shrinks, expected misses
}

// courses are rehearsed in the shadow of an engine; the one that would have cost
// least of late is followed.
type courses struct {
	all     []course
	now     int     // followed
	at      At      // of the last rehearsal
	ratesAt At      // when rates are looked at again
	shrink  float64 // what one costs training, 0 unknown
	weight  float64 // of the time that cost remembers, in seconds
}

// ways are the courses that are tried; the first is ski rental without a lot, the
// prior. Waits and lots are geometric: what lies between differs by little.
func ways(pool, quantum Bytes) []course {
	waits := []course{
		{rental: 1}, {rental: 0.25}, {rental: 0.5}, {rental: 2}, {rental: 4},
		{fixed: 500 * time.Millisecond}, {fixed: 2 * time.Second}, {fixed: 8 * time.Second},
	}
	lots := []Bytes{0}
	for part := Bytes(64); part >= 8; part /= 2 {
		if lot := (pool / part).FloorTo(quantum); lot > lots[len(lots)-1] {
			lots = append(lots, lot)
		}
	}
	out := make([]course, 0, 2*len(lots)*len(waits))
	for _, bare := range []bool{false, true} {
		for _, lot := range lots {
			for _, w := range waits {
				w.lot, w.bare = lot, bare
				out = append(out, w)
			}
		}
	}
	return out
}

// open says that courses can be compared: a shrink and a byte have a known price.
func (c *courses) open() bool { return c.shrink > 0 && len(c.all) > 0 }

// followed is the course in force, nil where none can be judged.
func (in *insurance) followed() *course {
	if !in.courses.open() || in.perByte <= 0 {
		return nil
	}
	return &in.courses.all[in.courses.now]
}

// forget drops what courses have cost, and keeps the one that is followed.
func (c *courses) forget() {
	for i := range c.all {
		c.all[i].cost = 0
	}
	c.weight = 0
}

// rehearse moves every course to now and chooses. It costs a few nanoseconds a
// course; what training's speed would be is looked at every insureEvery and where a
// bound moves.
func (h *Handover) rehearse(e *engine) {
	in := &e.ins
	c := &in.courses
	if c.all == nil {
		c.all, c.at = ways(e.cfg.Pool, h.cfg.Quantum), h.now
		for i := range c.all {
			c.all[i].bound = e.bound
		}
	}
	took := (h.now - c.at).Seconds()
	c.shrink = h.shrinkSamples(e) * h.prices.Sample
	if !c.open() || in.perByte <= 0 || h.off || e.down || !e.fenced {
		c.at = h.now
		return
	}
	fade := math.Exp(-took / coursesMemory.Seconds())
	c.weight = (c.weight + took) * fade
	rate := h.now >= c.ratesAt
	if rate {
		c.ratesAt = h.now + insureEvery
	}
	kept := h.kept(e)
	for i := range c.all {
		h.move(e, &c.all[i], fade, rate, kept)
	}
	c.at = h.now
	c.choose(in)
}

// choose follows the course that cost least, if by enough.
func (c *courses) choose(in *insurance) {
	best := c.now
	for i := range c.all {
		if c.all[i].cost < c.all[best].cost {
			best = i
		}
	}
	was := &c.all[c.now]
	if c.all[best].cost < was.cost*(1-courseGain)-courseShrinks*c.shrink {
		in.stale = in.stale || was.bare != c.all[best].bare
		c.now = best
	}
}

// move takes a course from the last rehearsal to now: what lay calm long enough was
// lent but for the cached prefixes that are kept, and what the target lacks now is
// taken back.
func (h *Handover) move(e *engine, x *course, fade float64, rate bool, kept Bytes) {
	q, span := h.cfg.Quantum, h.now-e.ins.courses.at
	if x.calm && x.until <= h.now && x.bound-x.most >= q {
		before := max(0, x.until-e.ins.courses.at)
		x.cost += x.rate * before.Seconds()
		span -= before
		x.bound, x.calm = x.most, false
		x.rate = h.idles(e, x.bound)
	}
	x.cost = (x.cost + x.rate*span.Seconds()) * fade
	target := e.ins.base
	if !x.bare {
		target = e.clamp(e.ins.base + e.ins.choice)
	}
	if target > x.bound {
		x.cost += e.ins.courses.shrink
		if x.since == 0 || h.now-x.since > h.cfg.Horizon {
			x.was, x.since = x.bound, h.now
		}
		x.bound, x.calm, rate = e.clamp(target+x.lot), false, true
	}
	lend := max(target, kept)
	switch {
	case x.bound-lend < q:
		x.calm = false
	case !x.calm:
		x.calm, x.until, x.most = true, h.now+h.waits(e, x, x.bound-lend), lend
	}
	x.most = max(x.most, lend)
	if rate {
		x.rate = h.idles(e, x.bound)
	}
}

// waits is how long an excess is kept in a course.
func (h *Handover) waits(e *engine, x *course, excess Bytes) time.Duration {
	if x.fixed > 0 {
		return x.fixed
	}
	rate := e.ins.perByte * h.prices.Sample * float64(max(excess, h.cfg.Quantum))
	return h.rental(e.ins.courses.shrink*x.rental, rate)
}

// meet counts an arrival in every course. One that finds no room waits for a new
// handover, one that finds only what an earlier shrink was to bring for the rest of
// that; either misses with the probability that the measured times give. That others
// leave meanwhile is no help: at its bound an engine gives what they leave to the
// growth of the requests that run.
func (h *Handover) meet(e *engine, slack time.Duration, price float64) {
	c := &e.ins.courses
	if !c.open() {
		return
	}
	fresh := h.times.Late(slack)
	need := e.needsRoom()
	for i := range c.all {
		x := &c.all[i]
		room, late := x.bound, fresh
		if age := h.now - x.since; need <= x.bound && x.since > 0 && age <= h.cfg.Horizon {
			room = x.was
			if need > room {
				late = h.times.Late(age + slack)
			}
		}
		if need > room {
			x.cost += late * price
		}
	}
}

// shrinkSamples is the samples that one shrink costs the jobs beside the engine.
func (h *Handover) shrinkSamples(e *engine) float64 {
	lost := 0.0
	for _, d := range e.devices {
		for _, t := range d.trainers {
			if t.orderable() {
				lost += t.wear.each.Seconds() * t.worth.at(t.planned())
			}
		}
	}
	return lost
}

// idles is what training loses a second, in currency, by a bound of the engine: the
// fall of its speed from a bound of 0.
func (h *Handover) idles(e *engine, bound Bytes) float64 {
	lost := 0.0
	for _, d := range e.devices {
		room, have, n := d.forTrainers(e)
		for _, t := range d.trainers {
			if !t.orderable() {
				continue
			}
			share := 1 / float64(n)
			if have > 0 {
				share = float64(t.planned()) / float64(have)
			}
			all, left := max(room, 0), max(room-e.on(d, bound), 0)
			lost += t.worth.at(Bytes(share*float64(all))) - t.worth.at(Bytes(share*float64(left)))
		}
	}
	return max(lost, 0) * h.share.until(h.now) * h.prices.Sample
}

// forTrainers is the bytes that budgets could have beside a bound of 0 of the
// engine, what they have, and how many there are.
func (d *device) forTrainers(e *engine) (room, have Bytes, n int) {
	room = d.capacity - d.cfg.Headroom
	for _, x := range d.engines {
		room -= x.resident
		if x != e {
			room -= x.on(d, x.kv())
		}
	}
	for _, t := range d.trainers {
		room -= t.floor
		if !t.orderable() {
			room -= t.charge() - t.floor
			continue
		}
		have += t.planned()
		n++
	}
	return room, have, n
}
