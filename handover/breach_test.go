package handover

import (
	"testing"
	"time"
)

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

// TestJobThatFreesNothingIsOneBreachHoweverOftenItIsOrdered: neither a further order nor
// a repeated one begins its time anew, and none ends the breach.
func TestJobThatFreesNothingIsOneBreachHoweverOftenItIsOrdered(t *testing.T) {
	for name, again := range map[string]func(h *Handover, n int){
		"further shrinks": func(h *Handover, n int) {
			h.Step(Arrived{At: h.now, ID: RequestID(rune('b' + n)), Engine: "llm", NeedBytes: 32 * mib, Slack: 100 * ms})
		},
		"repeats": func(h *Handover, _ int) {
			for epoch := h.trainers[0].epoch; h.trainers[0].epoch == epoch && h.jobs[0].resendAt > 0; {
				h.Step(Tick{At: h.jobs[0].resendAt})
			}
		},
	} {
		h := insured(t)
		h.Step(Arrived{At: h.now, ID: "a", Engine: "llm", NeedBytes: 200 * mib, Slack: 100 * ms})
		tr := h.trainers[0]
		held, first, due := tr.bytes, tr.budget, tr.change.decided+max(tr.change.within, h.cfg.AckWithin)
		for n := range 10 {
			epoch := tr.epoch
			h.Step(Acked{At: h.now, Trainer: "t0", Epoch: epoch, Held: tr.budget})
			h.Step(TrainerSeen{At: h.now + 3*ms, Trainer: "t0", Bytes: held})
			again(h, n)
			if tr.epoch == epoch {
				t.Fatalf("%s: no order came after %v", name, epoch)
			}
			want := uint64(0)
			if h.now > due {
				want = 1
			}
			if got, _ := h.breaches(); got != want {
				t.Fatalf("%s: %d breaches after %v, want %d: it is due at %v", name, got, h.now, want, due)
			}
		}
		if got, want := h.Snapshot().Devices[0].WorstBreach, held-tr.floor-first; got != want {
			t.Errorf("%s: the worst breach is %v, want %v: what it holds above what it has promised first", name, got, want)
		}
		h.Step(Acked{At: h.now, Trainer: "t0", Epoch: tr.epoch, Held: tr.budget})
		h.Step(TrainerSeen{At: h.now + ms, Trainer: "t0", Bytes: tr.floor + tr.budget})
		h.Step(TrainerSeen{At: h.now + time.Second, Trainer: "t0", Bytes: tr.floor + tr.budget})
		if got, _ := h.breaches(); got != 1 || h.devices[0].breached {
			t.Errorf("%s: it has freed: %d breaches, one now: %v; want the one that was", name, got, h.devices[0].breached)
		}
	}
}

// TestEngineThatOnlyDoesNotAnswerHasItsBytes: a dead one has none, as soon as that is
// known.
func TestEngineThatOnlyDoesNotAnswerHasItsBytes(t *testing.T) {
	h := insured(t)
	tr := h.trainers[0]
	full := h.devices[0].capacity - h.engines[0].resident - h.engines[0].held // beside the engine
	tr.floor = full                                                           // so that no order is broken
	h.Step(EngineDown{At: h.now, Engine: "llm"})
	h.Step(TrainerSeen{At: h.now, Trainer: "t0", Bytes: full})
	if got, _ := h.breaches(); got != 0 {
		t.Fatalf("as much as there is beside it: %d breaches, want none", got)
	}
	h.Step(TrainerSeen{At: h.now, Trainer: "t0", Bytes: full + mib})
	if got, _ := h.breaches(); got != 1 {
		t.Errorf("more than there is beside one that does not answer: %d breaches, want 1", got)
	}
	h.Step(EngineDown{At: h.now, Engine: "llm", Dead: true})
	h.Step(TrainerSeen{At: h.now, Trainer: "t0", Bytes: full + 2*mib})
	if got, _ := h.breaches(); got != 1 || h.devices[0].breached {
		t.Errorf("beside a dead one: %d breaches, one now: %v; want the one that was", got, h.devices[0].breached)
	}
}
