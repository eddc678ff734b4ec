package handover

// shrinkForNeed orders, per job, one shrink for all that its devices lack: what
// the engines' targets need beyond what is free and what is already coming, and
// what the world took beyond capacity.
func (h *Handover) shrinkForNeed() {
	for _, e := range h.engines { // before anything is planned on any device
		h.reach(e)
	}
	for _, d := range h.devices {
		if !d.read() {
			continue
		}
		need, must := Bytes(0), Bytes(0)
		for _, e := range d.engines {
			if e.fenced {
				need += max(0, e.on(d, e.reachable)-e.on(d, e.kv()))
				must += max(0, e.on(d, e.reachableMust)-e.on(d, e.kv()))
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
			sum += e.on(d, e.ins.upTo) - e.on(d, e.target)
		}
	}
	return sum
}

// why names the reason of a shrink on a device.
func (h *Handover) why(d *device) string {
	reason := reasonForecast
	for _, e := range d.engines {
		switch {
		case e.down:
			return reasonEngineDown
		case h.arrival != nil && h.arrival.engine == e:
			reason = reasonArrival
		case e.short > 0 && reason == reasonForecast:
			reason = reasonShort
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
		by := e.part(spare, e.scaleOn(d).freeing(over))
		over -= e.on(d, e.bound) - e.on(d, e.bound-by)
		h.setBound(e, e.bound-by, reasonSqueeze)
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
