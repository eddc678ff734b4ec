package handover

import "time"

// forecast sets the engine's two targets, in whole quanta.
//
// target is what the bound must cover or a shrink is ordered: the largest need
// until a shrink ordered then would be done (insured), at the configured
// quantile, and the reserve. Later demand is met by later orders, which is what
// makes lending the rest safe. With prices the reserve alone covers who arrives:
// what is kept for them follows from what it costs and not from a quantile.
//
// lend is what the bound keeps when bytes are given to training: the same, and
// at least the median of the largest need within the settling time, since bytes
// that will sooner be wanted back than not are not worth two handovers.
func (h *Handover) forecast(e *engine) {
	if e.cfg.Fence == FenceStatic {
		e.target, e.lend = e.cfg.Pool, e.cfg.Pool
		return
	}
	h.aim(e)
	demand := e.pred.Demand(h.now, lookInsured, h.cfg.Quantile) + e.foreign()
	if h.priced() && e.ins.derived() {
		demand = e.pred.Need() + e.foreign() // what comes is insured by its price
	}
	demand = max(demand, e.missed)
	if e.cfg.Whole {
		h.aimWhole(e, demand)
		return
	}
	expected := e.pred.Demand(h.now, lookSettled, 0.5) + e.foreign()
	if h.priced() {
		h.cover(e, demand, expected)
		return
	}
	e.target = e.clamp((demand + h.cfg.Reserve).CeilTo(h.cfg.Quantum))
	e.lend = max(e.target, e.clamp((expected + h.cfg.Reserve).CeilTo(h.cfg.Quantum)))
}

// The horizons of an engine's forecast: what a shrink ordered now is insured
// against, and for how long an excess must have been there before it is lent.
const (
	lookInsured = iota
	lookSettled
)

// looked is a time within what a forecast looks at.
func looked(d time.Duration) time.Duration { return min(max(d, time.Millisecond), time.Hour) }

// aim points the first horizon at what is insured now, and the second at the
// settling time, within policy.horizon.
func (h *Handover) aim(e *engine) {
	h.follow(e, lookInsured, h.insured())
	h.follow(e, lookSettled, min(h.settling(e), h.cfg.Horizon))
}

// follow keeps a horizon near what is wanted, in steps of a quarter, so that its
// forecasts live to be judged.
func (h *Handover) follow(e *engine, look int, want time.Duration) {
	if now := e.pred.Horizon(look); want > now || want*5 < now*4 {
		e.pred.Aim(look, looked(min(want+want/10, max(h.cfg.Horizon, want))))
	}
}

// clamp keeps a bound between the largest admitted request and the pool.
func (e *engine) clamp(b Bytes) Bytes {
	return e.all(min(max(b, e.cfg.MinBound, e.largest), e.cfg.Pool))
}

// insured is the time that the forecast must cover: what few handovers exceed,
// up to four deadlines. A release slower than that is answered by the owed
// policy, not by keeping more memory from training for ever.
func (h *Handover) insured() time.Duration {
	return min(max(h.tail.high(), time.Millisecond), 4*h.cfg.AckWithin)
}

// settling is how long a bound of the engine must have been too large before
// the excess is lent. Both terms ask that memory stays lent for longer than it
// takes to move it twice: sixteen mean handovers, so that moving it costs training
// at most an eighth of that time (a cost is a mean; the tail is what insured is
// for); and two mean gaps between arrivals, so that it was not wanted by the last
// two of them. The horizon caps it: over a longer time the forecast itself
// decides. With prices it is what the excess costs training instead (see patience).
func (h *Handover) settling(e *engine) time.Duration {
	if h.cfg.Settle > 0 {
		return h.cfg.Settle
	}
	if e.cfg.Whole {
		return h.lull(e)
	}
	if h.priced() && e.ins.patience > 0 {
		return e.ins.patience
	}
	return min(max(h.worthMoving(), time.Duration(e.gaps()*float64(time.Second))), h.cfg.Horizon)
}

// worthMoving is sixteen mean handovers.
func (h *Handover) worthMoving() time.Duration { return 16 * max(h.tail.mean, time.Millisecond) }

// gaps is two mean gaps between the engine's arrivals in seconds, 0 where none have
// come.
func (e *engine) gaps() float64 {
	perSecond := e.pred.PerSecond()
	if perSecond <= 0 {
		return 0
	}
	return 2 / perSecond
}

// settling of a device is that of its slowest engine.
func (h *Handover) settlingOf(d *device) time.Duration {
	if h.cfg.Settle > 0 {
		return h.cfg.Settle
	}
	wait := min(h.worthMoving(), h.cfg.Horizon)
	for _, e := range d.engines {
		if !e.cfg.Whole { // whose lull is about its own pool
			wait = max(wait, h.settling(e))
		}
	}
	return wait
}

// shrinkForNeed orders, per job, one shrink for all that its devices lack: what
// the engines' targets need beyond what is free and what is already coming, and
// what the world took beyond capacity.
func (h *Handover) shrinkForNeed() {
	for _, d := range h.devices {
		if !d.read() {
			continue
		}
		need, must := Bytes(0), Bytes(0)
		for _, e := range d.engines {
			if e.fenced {
				need += max(0, e.target-e.kv())
				must += max(0, e.must()-e.kv())
			}
		}
		have := d.free() + d.coming()
		if need <= have {
			d.limit.waits = false
			continue
		}
		lot := h.lots(d)
		short, least := need+lot-have, max(0, must-have)
		most := h.allow(d, short, least)
		left := h.takeFrom(d, most, min(least, most))
		d.limit.spend(most - left)
		d.limit.empty = most > 0 && left == most
		h.squeeze(d, short-most+left-lot-need)
		h.evict(d, left)
	}
	for _, j := range h.jobs {
		if t := j.wanted(); t != nil {
			h.issue(j, h.why(t.dev), h.cfg.AckWithin, proofFallen)
		}
	}
}

// lots is what a shrink that is ordered now on a device takes beyond its engines'
// targets, and lets their bounds rise so far.
func (h *Handover) lots(d *device) (sum Bytes) {
	for _, e := range d.engines {
		if lot := e.ins.lot(); h.priced() && lot > 0 && e.fenced && e.target > e.kv() {
			e.ins.upTo = e.clamp(e.target + lot)
			sum += e.ins.upTo - e.target
		}
	}
	return sum
}

// why names the reason of a shrink on a device.
func (h *Handover) why(d *device) string {
	reason := "forecast"
	for _, e := range d.engines {
		switch {
		case e.down:
			return "engine_down"
		case h.arrival != nil && h.arrival.engine == e:
			reason = "arrival"
		case e.short > 0 && reason == "forecast":
			reason = "short"
		}
	}
	return reason
}

// must is what the engine's live requests are expected to need, without
// insurance against growth, arrivals and error: only for that is a trainer
// suspended, since suspending costs it the microbatch or a long wait and its
// engine a slow handover.
func (e *engine) must() Bytes {
	if e.rests {
		return e.bound
	}
	return e.all(min(max(e.pred.Need()+e.foreign(), e.missed, e.largest, e.live()), e.cfg.Pool))
}

// takeFrom plans shrinks of the trainers on d for short bytes: first above
// their min budgets, in proportion to what each has there, in whole quanta; then,
// for the must of them only, by suspending trainers, in the order of their names.
// It returns what is still lacking.
func (h *Handover) takeFrom(d *device, short, must Bytes) Bytes {
	insured := short - must
	total := Bytes(0)
	for _, t := range d.trainers {
		if t.orderable() {
			total += max(0, t.planned()-t.minBudget)
		}
	}
	goal := min(short, total)
	for _, t := range d.trainers {
		spare := max(0, t.planned()-t.minBudget)
		if !t.orderable() || spare == 0 || goal <= 0 {
			continue
		}
		share := Bytes(float64(goal) * float64(spare) / float64(total))
		if total == spare {
			share = goal // the last takes what rounding left
		}
		goal -= h.cut(t, share, t.minBudget, &short)
		total -= spare
	}
	for _, t := range d.trainers {
		if lack := short - insured; lack > 0 && t.orderable() && t.planned() > t.least {
			h.cut(t, t.planned()-t.least, t.least, &short)
		}
	}
	return max(0, short)
}

// cut plans a budget lower by share, in whole quanta and not below least.
func (h *Handover) cut(t *trainer, share, least Bytes, short *Bytes) Bytes {
	to := max((t.planned() - share).FloorTo(h.cfg.Quantum), least)
	got := t.planned() - to
	if got <= 0 {
		return 0
	}
	t.plan(to)
	*short -= got
	return got
}

// squeeze lowers bounds towards their targets when training has nothing left to
// give and the device is still overcommitted by the world.
func (h *Handover) squeeze(d *device, over Bytes) {
	for _, e := range d.engines {
		spare := e.bound - e.target
		if over <= 0 || spare <= 0 || e.cfg.Fence == FenceStatic || !e.settled || !e.fenced {
			continue
		}
		by := e.part(spare, over)
		over -= by
		h.setBound(e, e.bound-by, "squeeze")
	}
}

// wanted is the job's first trainer with a new plan, nil when there is none.
func (j *job) wanted() *trainer {
	for _, t := range j.trainers {
		if t.wanted {
			return t
		}
	}
	return nil
}

// raiseBounds lets bounds rise into bytes that the ledger has free: those that
// nobody held, and those that a confirmed shrink has just brought. Free bytes
// cost nothing, so they also cover what the engine is expected to want later;
// beside no trainer, the whole pool.
func (h *Handover) raiseBounds() {
	if h.now < h.graceAt {
		return
	}
	for _, e := range h.engines {
		e.wish = e.bound
		h.wishUpTo(e, e.target)
	}
	for _, e := range h.engines {
		want := max(e.lend, e.ins.upTo)
		if !h.beside(e) && !e.leaving() {
			want = e.cfg.Pool
		}
		h.wishUpTo(e, want)
	}
	for _, e := range h.engines {
		if e.wish > e.bound {
			h.setBound(e, e.wish, "demand")
		}
		if !h.owed(e) {
			e.ins.upTo = 0
		}
	}
}

// wishUpTo plans a bound as far towards want as the devices have room, after
// what other engines were planned in this Step.
func (h *Handover) wishUpTo(e *engine, want Bytes) {
	if !e.fenced || e.down || e.cfg.Fence == FenceStatic || want <= e.wish {
		return
	}
	room := want
	for _, d := range e.devices {
		left := d.free()
		for _, x := range d.engines {
			if x != e {
				left -= max(0, x.wish-x.kv())
			}
		}
		room = min(room, max(0, left))
	}
	b := min(want, e.kv()+room)
	if b < want {
		b = e.some(b.FloorTo(e.block()))
	}
	e.wish = max(e.wish, b)
}

// beside says that a trainer shares a device with the engine.
func (h *Handover) beside(e *engine) bool {
	for _, d := range e.devices {
		if len(d.trainers) > 0 {
			return true
		}
	}
	return false
}
