package handover

import "github.com/lull-project/lull/size"

// splitOnce is ModeStatic: the elastic bytes of each device (capacity less
// residents, floors and headroom) are split by StaticKVFrac when all its
// engines are fenced and a trainer's floor is known. Each bound and each budget
// is sent once; a rise waits until its bytes are free, and nothing moves after.
func (h *Handover) splitOnce() {
	for _, d := range h.devices {
		if !d.split && h.readyToSplit(d) {
			d.split = true
			h.splitDevice(d)
		}
	}
	for _, e := range h.engines {
		if e.share == 0 || e.bound == e.share || !e.settled {
			continue
		}
		if e.share < e.bound || e.fits(e.share) {
			h.setBound(e, e.share, reasonStatic)
		}
	}
	for _, t := range h.trainers {
		if !t.shared || !t.orderable() || !t.fenced || t.open || t.share == t.budget {
			continue
		}
		if t.share < t.budget || (h.mayGrow(t.dev) && t.share-t.mayHold <= t.dev.free()-t.dev.planned()) {
			t.plan(t.share)
			t.shared = false
		}
	}
	for _, j := range h.jobs {
		if j.wanted() != nil {
			h.issue(j, reasonGrow, 0, proofAck)
		}
	}
}

// planned is what this Step's plans will take of the device's free bytes.
func (d *device) planned() Bytes {
	var sum Bytes
	for _, t := range d.trainers {
		if t.wanted {
			sum += max(0, t.want-t.mayHold)
		}
	}
	return sum
}

func (h *Handover) readyToSplit(d *device) bool {
	if h.now < h.graceAt {
		return false
	}
	for _, e := range d.engines {
		if !e.seen || !e.fenced || e.down {
			return false
		}
	}
	for _, t := range d.trainers {
		if !t.orderable() || !t.fenced || !t.seen {
			return false
		}
	}
	return len(d.trainers) > 0
}

func (h *Handover) splitDevice(d *device) {
	elastic, pools := d.capacity-d.cfg.Headroom, Bytes(0)
	for _, e := range d.engines {
		elastic -= e.resident
		pools += e.on(d, e.cfg.Pool)
	}
	for _, t := range d.trainers {
		elastic -= t.floor
	}
	rest := elastic
	for _, e := range d.engines {
		share := e.bound
		if e.cfg.Fence != FenceStatic {
			s := e.scaleOn(d)
			part := float64(elastic) * h.cfg.StaticKVFrac * float64(s.up(e.cfg.Pool)) / float64(pools)
			share = min(max(s.fit(Bytes(part)).FloorTo(e.block()), e.cfg.MinBound), e.cfg.Pool)
			if e.share > 0 {
				share = min(share, e.share) // the least of its devices
			}
			share = e.all(share)
			e.share = share
		}
		rest -= e.on(d, share)
	}
	for i, t := range d.trainers {
		t.share = max(0, rest/Bytes(len(d.trainers)-i)).FloorTo(size.MiB)
		t.shared = true
		rest -= t.share
	}
}
