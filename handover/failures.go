package handover

// noteOverdue counts shrinks that are owed past their deadline as failed; one
// that is confirmed later has its time after all.
func (h *Handover) noteOverdue() {
	for _, t := range h.trainers {
		c := t.change
		if t.open && c != nil && c.shrink && c.within > 0 && h.now-c.since > c.within {
			h.failed(c)
		}
	}
}

// failed counts a shrink as one that took for ever, once.
func (h *Handover) failed(c *change) {
	if !c.failed {
		c.failed, c.failure = true, h.times.Fail()
	}
}

// tookTime learns a shrink that the device has confirmed. One that brought only
// a part of what was ordered has failed.
func (h *Handover) tookTime(t *trainer, c *change) {
	took := h.now - c.since
	switch {
	case t.part > t.budget:
		h.failed(c)
	case c.failed:
		h.times.Recover(c.failure, took)
	default:
		h.times.Learn(took)
	}
}
