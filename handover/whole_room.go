package handover

// Whether a device has room for a pool that moves whole at all. Budgets and other whole
// pools can be taken back; what stays cannot, and a pool that does not fit beside it
// never comes.

// stays is what of a device cannot be taken for a pool that moves whole.
func (d *device) stays() Bytes {
	sum := d.cfg.Headroom
	for _, e := range d.engines {
		sum += e.resident
		switch {
		case e.cfg.Fence == FenceStatic:
			sum += e.on(d, e.kv())
		case !e.cfg.Whole:
			sum += e.on(d, e.cfg.MinBound)
		}
	}
	for _, t := range d.trainers {
		if t.orderable() {
			sum += t.floor + t.least
		}
	}
	return sum
}

// fitsBeside says that the engine's pool has room beside what stays, and so many bytes
// more.
func (e *engine) fitsBeside(d *device, more Bytes) bool {
	return d.stays()+more+e.on(d, e.cfg.Pool) <= d.capacity
}

// canCome says that the engine's pool can be there.
func (e *engine) canCome() bool {
	for _, d := range e.devices {
		if !e.fitsBeside(d, 0) {
			return false
		}
	}
	return true
}

// bars says that so many bytes more that stay would keep a pool away for ever that
// moves whole: its server would hang or fail its requests until the trainer ends.
func (d *device) bars(more Bytes) bool {
	for _, e := range d.engines {
		if e.cfg.Whole && e.fitsBeside(d, 0) && !e.fitsBeside(d, more) {
			return true
		}
	}
	return false
}
