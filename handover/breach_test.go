package handover

import "testing"

// breaches is how often the only device's limits were broken, and by how much more is
// promised than there is.
func (h *Handover) breaches() (n uint64, over Bytes) {
	d := h.Snapshot().Devices[0]
	return d.Breaches, d.Over
}

// TestJobThatConnectsWithMoreThanIsLeftBreaksNoLimitUntilItHoldsIt: a promise of
// another sidecar is no byte of the device.
func TestJobThatConnectsWithMoreThanIsLeftBreaksNoLimitUntilItHoldsIt(t *testing.T) {
	h := insured(t)
	late := Hello{At: h.now, Trainer: "t1", Job: "late", Device: "d0", Floor: 8 * mib, FloorKnown: true, Ceiling: 512 * mib}
	h.Step(late)
	if n, over := h.breaches(); n != 0 || over == 0 {
		t.Errorf("a hello that holds nothing: %d breaches, %v over; want none, and more promised than there is", n, over)
	}
	h.Step(TrainerSeen{At: h.now, Trainer: "t1", Bytes: 520 * mib})
	if n, _ := h.breaches(); n != 1 {
		t.Errorf("it holds all of it: %d breaches, want 1", n)
	}
	h.Step(TrainerSeen{At: h.now, Trainer: "t1", Bytes: 520 * mib})
	if n, _ := h.breaches(); n != 1 {
		t.Errorf("and still does: %d breaches, want the same one", n)
	}
	h.Step(TrainerSeen{At: h.now, Trainer: "t1", Bytes: 8 * mib})
	h.Step(TrainerSeen{At: h.now, Trainer: "t1", Bytes: 520 * mib})
	if n, _ := h.breaches(); n != 2 {
		t.Errorf("it has begun again: %d breaches, want 2", n)
	}
}

func TestJobAboveWhatItAckedIsABreachFromTheDeadlineOn(t *testing.T) {
	h := insured(t)
	h.Step(Arrived{At: h.now, ID: "a", Engine: "llm", NeedBytes: 200 * mib, Slack: 100 * ms})
	tr := h.trainers[0]
	if !tr.open || tr.change == nil || !tr.change.shrink {
		t.Fatal("no shrink was ordered")
	}
	held, due := tr.bytes, tr.change.decided+tr.change.within
	for _, c := range []struct {
		what string
		ev   Event
		want uint64
	}{
		{"no ack, overdue", TrainerSeen{At: due + ms, Trainer: "t0", Bytes: held}, 0},
		{"an ack after the deadline, not read since", Acked{At: due + 2*ms, Trainer: "t0", Epoch: tr.epoch, Held: tr.budget}, 0},
		{"a heap's breath above it", TrainerSeen{At: due + 3*ms, Trainer: "t0", Bytes: tr.floor + tr.budget + h.cfg.Quantum - 1}, 0},
		{"a quantum above it", TrainerSeen{At: due + 4*ms, Trainer: "t0", Bytes: tr.floor + tr.budget + h.cfg.Quantum}, 1},
		{"and still", TrainerSeen{At: due + 5*ms, Trainer: "t0", Bytes: held}, 1},
	} {
		h.Step(c.ev)
		if n, _ := h.breaches(); n != c.want {
			t.Errorf("%s: %d breaches, want %d", c.what, n, c.want)
		}
	}
}
