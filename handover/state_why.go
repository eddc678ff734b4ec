package handover

import "fmt"

// whyNothing says why a trainer has no budget, or less than the least with which it
// can go on; empty where it has that, or has left.
func (h *Handover) whyNothing(t *trainer) string {
	d := t.dev
	switch {
	case t.gone || t.budget > 0 && t.budget >= t.minBudget:
		return ""
	case !t.floorKnown:
		return "nothing is granted before its floor is known, which its first step measures"
	case h.now < h.graceAt:
		return "after a start, jobs of before have a moment to say hello; nothing is granted until then"
	case t.job.open():
		return "an order of its job is not done yet"
	}
	for _, e := range d.engines {
		switch {
		case e.down:
			return fmt.Sprintf("engine %s is down: room is kept for its start", e.cfg.ID)
		case !e.seen || e.unread || !e.fenced:
			return fmt.Sprintf("engine %s cannot be read or has not confirmed its bound; nothing is granted beside it until then", e.cfg.ID)
		}
	}
	for _, x := range d.trainers {
		if !x.gone && (!x.floorKnown || !x.fenced || !x.seen || x.held() >= x.mayHold+h.cfg.Quantum) {
			return fmt.Sprintf("trainer %s on the device is not known well enough: its floor, its bytes or its promise", x.id)
		}
	}
	free := d.free()
	if least := max(t.minBudget-t.budget, h.cfg.Quantum); free < least {
		bounds := Bytes(0)
		for _, e := range d.engines {
			bounds += e.on(d, e.kv())
		}
		return fmt.Sprintf("%v of the device are free, and it needs %v; engines keep %v for KV, of %v in all", max(free, 0), least, bounds, d.capacity)
	}
	return "what is free must have been so for a moment before it is granted"
}
