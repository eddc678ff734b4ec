package handover

// onEngineSeen takes an engine's word about itself. Its first sample also names
// the bound that the fence repeats under this session.
func (h *Handover) onEngineSeen(s EngineSeen) {
	e := h.engine(s.Engine)
	if e == nil || e.down {
		return
	}
	e.unread = false
	e.resident = max(e.resident, s.Resident)
	if s.BoundEpoch > NewEpoch(h.cfg.Session, h.count) {
		h.outrank(s.BoundEpoch)
		if e.seen && e.cfg.Fence == FenceHard {
			e.mayMap = max(e.mayMap, s.Bound)
			h.setBound(e, e.bound, reasonFence) // another writer has moved it
		}
	}
	if s.BoundEpoch > 0 && s.BoundEpoch < e.proven {
		return // read before the bound that is already confirmed
	}
	if e.cfg.Fence != FenceStatic {
		e.held = s.Held
	}
	e.needed = s.Needed
	h.seePrefixes(e, s)
	if e.needed == 0 {
		e.needed = max(0, s.Held-s.Evictable)
	}
	e.unexplained[1] = e.unexplained[0]
	e.unexplained[0] = max(0, e.needed-(e.pred.Need()-e.queued))
	e.short, e.missed = missed(e, s)
	first := !e.seen
	e.seen = true
	switch {
	case e.cfg.Fence == FenceStatic:
		e.fenced, e.settled = true, true
	case e.cfg.Fence == FenceArena:
		e.fenced = true
		if first { // it has what it holds; more only out of what is free
			e.bound = e.held
		}
		if e.held <= e.bound {
			e.settled, e.mayMap = true, e.bound
		}
	case first && e.epoch == 0:
		h.fenceEngine(e, s.Bound)
	case e.epoch > 0 && s.BoundEpoch == e.epoch && !e.settled && s.Bound > 0:
		e.boundConfirmed(h.now, s.Bound, s.Held)
	case e.lost(s):
		if e.confirmed = 0; e.settled { // else the order under way brings it
			h.setBound(e, e.bound, reasonFence)
		}
	case e.keepsEpochs && s.BoundEpoch == 0 && s.Bound > e.bound:
		// It restarted between two samples and forgot its bound. What it mapped is in
		// held; what it may map until it hears is a risk of one round trip.
		h.setBound(e, e.bound, reasonFence)
	}
	e.keepsEpochs = e.keepsEpochs || s.BoundEpoch > 0
}

// missed is the demand that an engine shows and the forecast did not have: what
// its waiting requests lack, and the bound under which they would not; or one
// block's sign of it when requests wait and less than a block is left. What is
// lacking is beside the bound of the sample, which may be older than the last.
func missed(e *engine, s EngineSeen) (short, bound Bytes) {
	block := e.block()
	switch {
	case s.Short > 0 && s.Bound > 0:
		return s.Short, s.Bound + s.Short
	case s.Short > 0:
		return s.Short, e.bound + s.Short
	case s.Waiting > 0 && e.settled && e.needed+block > e.bound:
		return block, e.needed + block
	}
	return 0, 0
}

// fenceEngine repeats the bound that the engine has, or its pool when it does
// not say, so that nothing older can move it. One below MinBound rises later, as
// every bound does: into free bytes.
func (h *Handover) fenceEngine(e *engine, bound Bytes) {
	if bound <= 0 && !e.cfg.Whole {
		bound = e.cfg.Pool
	}
	e.mayMap = bound
	h.setBound(e, e.all(min(bound, e.cfg.Pool)), reasonFence)
}

// onEngineUnread stops growth beside an engine that cannot be read.
func (h *Handover) onEngineUnread(u EngineUnread) {
	if e := h.engine(u.Engine); e != nil {
		e.unread = true
	}
}

// onEngineDown charges the engine its whole start until it is up.
func (h *Handover) onEngineDown(d EngineDown) {
	e := h.engine(d.Engine)
	if e == nil {
		return
	}
	e.down, e.dead, e.fenced, e.seen, e.calm = true, d.Dead, false, false, false
	if e.cfg.Await > 0 {
		e.confirmed = 0 // who knows what it has when it is back
	}
	e.short, e.missed, e.needed, e.unexplained = 0, 0, 0, [2]Bytes{}
}

// onEngineUp fences an engine that is back with the bound that was kept for it.
// A first EngineUp says nothing that the first EngineSeen does not.
func (h *Handover) onEngineUp(u EngineUp) {
	e := h.engine(u.Engine)
	if e == nil || !e.down {
		return
	}
	e.mayMap = max(e.kv(), e.startKV())
	e.down, e.dead = false, false
	if e.cfg.Fence == FenceHard && e.epoch > 0 { // else its first sample says what it has
		h.setBound(e, e.bound, reasonFence)
	}
}

// onBoundSet takes an engine's confirmation of the last SetBound; one of an
// older epoch says nothing about the newer.
func (h *Handover) onBoundSet(s BoundSet) {
	e := h.engine(s.Engine)
	if e == nil || e.down || s.Epoch != e.epoch || e.epoch == 0 {
		return
	}
	e.boundConfirmed(h.now, s.Bound, s.Held)
}

// onBoundFailed leaves the ledger as it is (the engine may obey or not) and
// repeats the bound soon, with backoff.
func (h *Handover) onBoundFailed(f BoundFailed) {
	e := h.engine(f.Engine)
	if e == nil || e.down || f.Epoch != e.epoch || e.settled {
		return
	}
	if e.cfg.Await > 0 && !e.rests && e.kv() > 0 { // else nothing was to move
		h.giveUp(e)
		return
	}
	if e.cfg.Whole && e.bound == 0 {
		return // it did not let its pool go and rests; each try holds requests up
	}
	e.retryAt = min(e.retryAt, h.now+e.retryWait/10)
}

// onCapacitySeen moves a device's capacity; less than what is promised is the
// world's breach, and training shrinks.
func (h *Handover) onCapacitySeen(c CapacitySeen) {
	if d := h.device(c.Device); d != nil {
		d.capacity = c.Capacity
	}
}
