package handover

// sleep asks for the next Tick when something is to be done without an event:
// at most one Wake a Step, and none when nothing is owed.
func (h *Handover) sleep() {
	if h.wake <= h.now {
		h.wake = 0
	}
	next := At(0)
	soon := func(at At) {
		if at > h.now && (next == 0 || at < next) {
			next = at
		}
	}
	for _, r := range h.queue {
		soon(r.dueAt)
	}
	for _, j := range h.jobs {
		soon(j.resendAt)
	}
	for _, t := range h.trainers {
		soon(t.readAt)
		if t.asked > 0 {
			soon(max(t.askedAt, h.graceAt) + floorPatience)
		}
	}
	for _, e := range h.engines {
		if !e.settled && e.epoch > 0 && e.cfg.Fence == FenceHard && !e.down {
			soon(e.retryAt)
		}
		if e.calm && h.wantedBeside(e) {
			soon(e.calmUntil)
		}
	}
	for _, d := range h.devices {
		if d.calm {
			soon(d.calmUntil)
		}
		soon(d.limit.nextAt(h.cfg.Limit, h.cfg.Quantum))
	}
	if len(h.trainers) > 0 {
		soon(h.graceAt)
	}
	soon(h.nextLook())
	if next > 0 && next != h.wake {
		h.wake = next
		h.emit(Wake{At: next})
	}
}

// nextLook is when a bound that may be lent is looked at again although nothing
// happens: the forecast fades, and the arena's window passes. It is 0 once all
// that can be lent is.
func (h *Handover) nextLook() At {
	if h.cfg.Mode == ModeStatic {
		return 0
	}
	look := false
	for _, e := range h.engines {
		look = look || (e.cfg.Fence != FenceStatic && e.bound-e.clamp(h.leastReserve()) >= h.cfg.Quantum && h.wantedBeside(e))
	}
	for _, d := range h.devices {
		look = look || (len(d.granted) > 0 && d.free() >= h.cfg.Quantum && h.mayGrow(d))
	}
	if !look {
		h.idle = 0
		return 0
	}
	if h.idle <= h.now {
		h.idle = h.now + h.cfg.Horizon/4
	}
	return h.idle
}

// leastReserve is what is kept however quiet it gets. A priced reserve fades with
// the arrivals, so it is looked at until it is gone.
func (h *Handover) leastReserve() Bytes {
	if h.priced() {
		return 0
	}
	return h.cfg.Reserve.CeilTo(h.cfg.Quantum)
}
