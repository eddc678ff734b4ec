package handover

// onHello takes a trainer that connected or connected again. With a known floor
// it is fenced: its ceiling is repeated under this session (or what this
// session last ordered, when that is less), and nothing grows before it has
// answered and the device was read.
func (h *Handover) onHello(e Hello) {
	d := h.device(e.Device)
	if d == nil {
		return
	}
	h.outrank(e.LastEpoch)
	t := h.addTrainer(e.Trainer, e.Job, d)
	ordered := t.epoch.Session() == h.cfg.Session && t.epoch > 0
	t.gone, t.readAt, t.asked = false, 0, 0
	t.minBudget = e.MinBudget.CeilTo(h.cfg.Quantum)
	t.least = min(e.Suspended.CeilTo(h.cfg.Quantum), t.minBudget)
	if !t.seen {
		t.bytes = e.Floor + e.Held
	}
	h.emit(ReadTrainer{Trainer: t.id})
	if !e.FloorKnown {
		return
	}
	h.finish(t, "unconfirmed")
	t.floor, t.floorKnown, t.fenced, t.open, t.promise = e.Floor, true, false, false, promise{}
	want := e.Ceiling
	if ordered {
		want = min(want, t.budget)
	}
	t.mayHold = max(t.mayHold, e.Ceiling)
	t.budget = e.Ceiling
	t.plan(want)
	h.issue(t.job, reasonFence, 0, proofRead)
}

// onAcked takes a trainer's promise. It counts only for its own epoch, or for one
// that this repeats, and as a shrink's only when it promises to hold no more than was ordered, or says that
// it can do no more; the device is asked at once whether it is true.
func (h *Handover) onAcked(e Acked) {
	t := h.trainer(e.Trainer)
	if t == nil || !t.open || t.acked || e.Epoch > t.epoch || e.Epoch < t.asOf {
		return
	}
	if e.How == howSuperseded { // it promises nothing: it obeys another order
		return
	}
	switch {
	case e.Held <= t.budget:
	case e.How == howPart: // more than it might hold before where its floor rose uninvited; a liar takes the device
		t.part = min(e.Held, t.dev.capacity)
	case t.proof == proofFallen:
		return
	}
	t.acked = true
	if !t.promise.made {
		t.promise = h.promised(t)
	}
	if c := t.change; c != nil {
		c.acked, c.how = h.now, e.How
	}
	if t.proof == proofAck {
		h.prove(t)
		return
	}
	h.emit(ReadTrainer{Trainer: t.id})
	t.readWait = firstRead
	t.readAt = h.now + t.readWait
}

// onTrainerSeen takes the device's word.
func (h *Handover) onTrainerSeen(e TrainerSeen) {
	t := h.trainer(e.Trainer)
	if t == nil {
		return
	}
	t.bytes, t.seen = e.Bytes, true
	h.seePromise(t)
	if t.gone && e.Bytes == 0 {
		j := t.job
		h.finish(t, "gone")
		h.detach(t)
		h.settle(j)
		return
	}
	h.prove(t)
}

// onTrainerGone keeps counting the trainer's bytes until the device shows them
// gone: a closed connection is not a dead process.
func (h *Handover) onTrainerGone(e TrainerGone) {
	t := h.trainer(e.Trainer)
	if t == nil || t.gone {
		return
	}
	t.gone, t.asked, t.wanted = true, 0, false
	if e.Left {
		h.finish(t, "gone")
		t.floorKnown, t.open, t.budget, t.mayHold, t.promise = false, false, 0, 0, promise{}
	}
	h.emit(ReadTrainer{Trainer: t.id})
	t.readWait = firstRead
	t.readAt = h.now + t.readWait
}

// onFloorAsked notes the request; answerFloors answers it, in this Step or when
// a bound has come down for it.
func (h *Handover) onFloorAsked(e FloorAsked) {
	t := h.trainer(e.Trainer)
	if t == nil || t.gone {
		return
	}
	if !t.floorKnown {
		h.emit(RefuseFloor{Trainer: e.Trainer, Floor: t.floor})
		return
	}
	t.asked, t.askedAt = e.Floor, h.now
}
