package handover

// A breach is bytes that are held above a limit: by all together above the device's
// capacity, at once; by a trainer above what it has promised by an ack, from the order's
// deadline on. What is only promised (a job that says hello with a ceiling above what
// was left, and holds nothing of it) breaks no limit: it is in over, and training
// shrinks for it. An order without an ack is late, and stands among those owed.

// promise is what a trainer has acked to hold no more than.
type promise struct {
	made   bool
	most   Bytes
	due    At   // more is a breach after it
	broken bool // the device has shown more since the ack
}

// noteBreach counts when a breach of the device begins, and by how much it is broken at
// worst.
func (h *Handover) noteBreach(d *device) {
	above := max(0, d.holds()-d.capacity)
	for _, t := range d.trainers {
		if more := t.held() - h.limit(t); t.floorKnown && more >= h.cfg.Quantum { // less is charged (mayGrow)
			above = max(above, more)
		}
	}
	if above > 0 && !d.breached {
		d.breaches++
	}
	d.breached = above > 0
	d.worstBreach = max(d.worstBreach, above)
}

// holds is what everybody has on the device, as last seen; a dead engine has nothing,
// one that only does not answer has what it had.
func (d *device) holds() Bytes {
	var sum Bytes
	for _, e := range d.engines {
		if !e.dead {
			sum += e.resident + e.on(d, e.held)
		}
	}
	for _, t := range d.trainers {
		sum += t.bytes
	}
	return sum
}

// limit is the most activation memory that the trainer may hold now.
func (h *Handover) limit(t *trainer) Bytes {
	if p := t.promise; p.broken && h.now > p.due {
		return p.most
	}
	return t.mayHold
}

// promised is what the order under way has brought, none before its ack.
func (h *Handover) promised(t *trainer) promise {
	c := t.change
	if !t.open || !t.acked || c == nil || !c.shrink {
		return promise{}
	}
	return promise{made: true, most: max(t.budget, t.part), due: c.decided + max(c.within, h.cfg.AckWithin)}
}

// seePromise takes the device's word on it. A promise stands until it is kept, whatever
// is ordered meanwhile but more: else a trainer that frees nothing would be in time with
// each further order.
func (h *Handover) seePromise(t *trainer) {
	if t.promise.made && t.held() <= t.promise.most {
		t.promise = h.promised(t)
	}
	t.promise.broken = t.promise.made && t.held() > t.promise.most
}
