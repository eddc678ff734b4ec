package handover

// lend gives to training what no engine is expected to want: first bounds come
// down, then, when the engines have confirmed it, budgets go up.
func (h *Handover) lend() {
	for _, e := range h.engines {
		h.lowerBound(e)
	}
	for _, d := range h.devices {
		if h.mayGrow(d) {
			h.giveFrom(d)
		} else {
			d.calm = false
		}
	}
	for _, j := range h.jobs {
		if j.wanted() != nil {
			h.issue(j, reasonGrow, 0, proofAck)
		}
	}
}

// lowerBound takes an engine's excess away when it was there all through the
// settling time, down to the largest target of that time.
func (h *Handover) lowerBound(e *engine) {
	if e.cfg.Fence == FenceStatic || !e.fenced || !e.settled || e.down || e.bound-e.lend < h.cfg.Quantum {
		e.calm = false
		return
	}
	if !e.calm {
		e.calm, e.calmUntil, e.calmMost = true, h.now+h.settling(e), e.lend
	}
	e.calmMost = max(e.calmMost, e.lend)
	if h.now < e.calmUntil || e.bound-e.calmMost < h.cfg.Quantum || !h.wantedBeside(e) || h.warm(e) {
		return
	}
	h.setBound(e, e.calmMost, reasonLend)
}

// wantedBeside says that a trainer beside the engine could take its excess.
func (h *Handover) wantedBeside(e *engine) bool {
	for _, d := range e.devices {
		for _, t := range d.trainers {
			if t.orderable() && h.mayGrow(d) {
				return true
			}
		}
	}
	return false
}

// mayGrow says that every party of the device is fenced and read, nothing is
// overcommitted, no trainer is a quantum or more above its promise (less is
// charged to it and leaves that much less to lend) and no order is owed.
func (h *Handover) mayGrow(d *device) bool {
	if h.now < h.graceAt || d.free() < 0 {
		return false
	}
	for _, e := range d.engines {
		if !e.seen || e.unread || !e.fenced || e.down {
			return false
		}
	}
	for _, t := range d.trainers {
		if !t.gone && (!t.floorKnown || !t.fenced || !t.seen || t.held() >= t.mayHold+h.cfg.Quantum) {
			return false
		}
		if t.job.open() {
			return false
		}
	}
	return true
}

// giveFrom plans grants of the device's free bytes, less what its engines lack
// to their lend targets, in whole quanta: trainers below their min budget first,
// by name, then all alike. Bytes that a bound gave up have settled; others (a
// shrink too large, a trainer's death) must have been free for the settling
// time.
func (h *Handover) giveFrom(d *device) {
	left := d.free()
	for _, e := range d.engines {
		left -= max(0, e.on(d, e.lend)-e.on(d, e.kv()))
	}
	if left < h.cfg.Quantum {
		d.calm = false
		return
	}
	if !d.calm {
		d.calm, d.calmUntil = true, h.now+h.settlingOf(d)
	}
	if !d.lending() && h.now < d.calmUntil {
		return
	}
	for _, e := range d.engines {
		e.lending = e.lending && !e.settled
	}
	left = min(left, h.arenaRoom(d)).FloorTo(h.cfg.Quantum)
	var takers []*trainer
	for _, t := range d.trainers {
		if !t.orderable() {
			continue
		}
		if lack := t.minBudget - t.budget; lack > 0 {
			lack = lack.CeilTo(h.cfg.Quantum)
			if lack > left {
				continue
			}
			t.plan(t.budget + lack)
			left -= lack
			d.note(h.now, lack)
		}
		takers = append(takers, t)
	}
	for i, t := range takers {
		share := (left / Bytes(len(takers)-i)).CeilTo(h.cfg.Quantum)
		share = min(share, left)
		if share <= 0 {
			continue
		}
		t.plan(t.planned() + share)
		left -= share
		d.note(h.now, share)
	}
}

// lending says that a bound of the device came down for training, confirmed.
func (d *device) lending() bool {
	for _, e := range d.engines {
		if e.lending && e.settled {
			return true
		}
	}
	return false
}

// arenaRoom is what may be granted now beside an arena engine: within twice the
// longest map that it was seen to do, grants stay within half the headroom, so
// that a map that began before the trainer took its bytes still fits.
func (h *Handover) arenaRoom(d *device) Bytes {
	room := d.capacity
	for _, e := range d.engines {
		if e.cfg.Fence != FenceArena {
			continue
		}
		used := Bytes(0)
		for _, g := range d.granted {
			if h.now-g.at < 2*e.cfg.MapAhead {
				used += g.bytes
			}
		}
		room = min(room, max(0, d.cfg.Headroom/2-used))
	}
	return room
}

// note remembers a grant for arenaRoom and forgets those too old to matter.
func (d *device) note(at At, b Bytes) {
	window := At(0)
	for _, e := range d.engines {
		if e.cfg.Fence == FenceArena {
			window = max(window, 2*e.cfg.MapAhead)
		}
	}
	keep := d.granted[:0]
	for _, g := range d.granted {
		if at-g.at < window {
			keep = append(keep, g)
		}
	}
	d.granted = append(keep, grant{at: at, bytes: b})
	if window == 0 {
		d.granted = d.granted[:0]
	}
}
