package handover

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
			h.setBound(e, e.wish, reasonDemand)
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
	most := want
	for _, d := range e.devices {
		left := d.free()
		for _, x := range d.engines {
			if x != e {
				left -= max(0, x.on(d, x.wish)-x.on(d, x.kv()))
			}
		}
		s := e.scaleOn(d)
		most = min(most, s.fit(s.up(e.kv())+max(0, left)))
	}
	b := min(want, max(most, e.kv()))
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
