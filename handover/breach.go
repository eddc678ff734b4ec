package handover

// A breach is bytes that are held above a limit: by all together above the device's
// capacity, at once; by a trainer above an order that it has acked, from the order's
// deadline on. What is only promised (a job that says hello with a ceiling above what
// was left, and holds nothing of it) breaks no limit: it is in over, and training
// shrinks for it. An order without an ack is late, and stands among those owed.

// noteBreach counts when a breach of the device begins.
func (h *Handover) noteBreach(d *device) {
	breached := d.holds() > d.capacity
	for _, t := range d.trainers {
		breached = breached || t.floorKnown && t.held() >= h.limit(t)+h.cfg.Quantum // less is charged (mayGrow)
	}
	if breached && !d.breached {
		d.breaches++
	}
	d.breached = breached
}

// holds is what everybody has on the device, as last seen; a dead engine has nothing.
func (d *device) holds() Bytes {
	var sum Bytes
	for _, e := range d.engines {
		if !e.down {
			sum += e.resident + e.on(d, e.held)
		}
	}
	for _, t := range d.trainers {
		sum += t.bytes
	}
	return sum
}

// limit is the most activation memory that the trainer may hold now: an order that it
// has acked counts once it is overdue and the device has shown more since.
func (h *Handover) limit(t *trainer) Bytes {
	if c := t.change; t.unkept && c != nil && c.shrink && h.now-c.decided > max(c.within, h.cfg.AckWithin) {
		return max(t.budget, t.part)
	}
	return t.mayHold
}
