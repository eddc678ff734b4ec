package handover

import "time"

// floorPatience is how long a higher floor may wait for a bound to come down
// before it is refused.
const floorPatience = time.Second

// answerFloors answers trainers that asked for a higher floor, in this order:
// out of free bytes, out of the trainer's own budget, out of a bound's excess
// over its target; else it is refused, as is one that would keep a pool that moves
// whole away for ever.
func (h *Handover) answerFloors() {
	for _, t := range h.trainers {
		if t.asked > 0 {
			h.answerFloor(t)
		}
	}
}

func (h *Handover) answerFloor(t *trainer) {
	rise := t.asked - t.floor
	if rise <= 0 {
		h.grantFloor(t, 0, 0)
		return
	}
	if h.now < h.graceAt {
		return // what looks free may be another trainer's
	}
	if t.dev.bars(rise) {
		h.refuseFloor(t)
		return
	}
	free := max(0, t.dev.free())
	lack := rise - free
	if lack <= 0 {
		h.grantFloor(t, rise, 0)
		return
	}
	if own := lack.CeilTo(h.cfg.Quantum); t.planned()-own >= t.minBudget && t.mayHold >= lack {
		h.grantFloor(t, rise, own)
		t.mayHold -= lack // floor + mayHold is as it was, but for the free bytes
		return
	}
	lowering := Bytes(0)
	for _, e := range t.dev.engines {
		lowering += e.on(t.dev, e.kv()) - e.on(t.dev, e.bound)
	}
	if lack > lowering && h.cfg.Mode == ModeElastic {
		lowering += h.lowerForFloor(t.dev, lack-lowering)
	}
	if lack > lowering || h.now-max(t.askedAt, h.graceAt) >= floorPatience {
		h.refuseFloor(t)
	}
}

func (h *Handover) refuseFloor(t *trainer) {
	h.emit(RefuseFloor{Trainer: t.id, Floor: t.floor})
	t.asked = 0
}

// grantFloor answers with an order of the budget that goes with the new floor.
func (h *Handover) grantFloor(t *trainer, rise, own Bytes) {
	t.asked = 0
	t.plan((t.planned() - own).FloorTo(1))
	t.floor += rise
	h.issue(t.job, reasonFloor, 0, proofAck)
}

// lowerForFloor lowers bounds by up to lack, not below their targets, and
// returns by how much.
func (h *Handover) lowerForFloor(d *device, lack Bytes) Bytes {
	got := Bytes(0)
	for _, e := range d.engines {
		spare := (e.bound - e.target).FloorTo(e.block())
		if e.cfg.Whole {
			spare = e.some(e.bound - e.target)
			if !e.calm || h.now < e.calmUntil || h.warm(e) {
				continue // its lull is not over, or it stays
			}
		}
		if lack <= got || spare <= 0 || e.cfg.Fence == FenceStatic || !e.settled || !e.fenced || e.down {
			continue
		}
		by := e.part(spare, e.scaleOn(d).freeing(lack-got))
		got += e.on(d, e.bound) - e.on(d, e.bound-by)
		h.setBound(e, e.bound-by, reasonFloor)
	}
	return got
}
