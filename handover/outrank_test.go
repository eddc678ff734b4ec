package handover

import "testing"

// grown is a core whose trainer has the most that it gets beside an idle engine.
func grown(t *testing.T) (*Handover, At) {
	t.Helper()
	w := newReplay(t, demoConfig(), 1)
	w.run(5_000 * ms)
	if b := w.h.trainers[0].budget; b < 400*mib {
		t.Fatalf("budget %v after 5s of idleness, want most of the elastic bytes", b)
	}
	return w.h, w.now
}

// Who obeys a later session than ours would refuse every order of ours.
func TestSessionRisesAboveAnEpochThatATrainerHasObeyed(t *testing.T) {
	h, now := grown(t)
	acts := h.Step(Hello{
		At: now + 1, Trainer: "t1", Job: "other", Device: "d0", Floor: mib, FloorKnown: true, LastEpoch: NewEpoch(77, 5),
	})
	for _, a := range acts {
		if o, ok := a.(Order); ok && o.Trainer == "t1" && o.Epoch <= NewEpoch(77, 5) {
			t.Errorf("order %v to a trainer that has obeyed 77.5", o.Epoch)
		}
	}
	if got := h.nextEpoch(); got.Session() != 78 {
		t.Errorf("next epoch %v, want session 78", got)
	}
}

func TestBoundMovedByAnotherWriterIsSetAgainAboveItsEpoch(t *testing.T) {
	h, now := grown(t)
	before := h.engines[0].bound
	acts := h.Step(EngineSeen{At: now + 1, Engine: "llm", Bound: demoElastic, BoundEpoch: NewEpoch(900, 1)})
	var set *SetBound
	for _, a := range acts {
		if b, ok := a.(SetBound); ok {
			set = &b
		}
	}
	if set == nil || set.Epoch <= NewEpoch(900, 1) || set.Bytes > before {
		t.Fatalf("actions %v, want the bound of %v again above epoch 900.1", acts, before)
	}
	if d := h.devices[0]; d.free() >= 0 {
		t.Errorf("free %v, want the ledger to count that the engine may map its whole pool", d.free())
	}
}

func TestEpochThatNoSessionCanOutrankIsLeftAlone(t *testing.T) {
	h, now := grown(t)
	h.Step(EngineSeen{At: now + 1, Engine: "llm", Bound: mib, BoundEpoch: 1 << 62})
	if got := h.nextEpoch(); got.Session() != 1 {
		t.Errorf("next epoch %v, want session 1 still: a larger one would not fit a JSON number", got)
	}
}

func TestSupersededAckPromisesNothing(t *testing.T) {
	h, now := grown(t)
	h.Step(Arrived{At: now + 1, ID: "a", Engine: "llm", NeedBytes: 300 * mib})
	tr := h.trainers[0]
	if !tr.open {
		t.Fatal("no shrink is owed")
	}
	h.Step(Acked{At: now + 2, Trainer: "t0", Epoch: tr.epoch, Held: 0, How: "superseded"})
	h.Step(TrainerSeen{At: now + 3, Trainer: "t0", Bytes: demoFloor})
	if !tr.open || tr.acked {
		t.Error("an ack that says superseded was taken for a promise")
	}
}

// A process that says goodbye and lives on holds what the device shows, and no
// grant of ours.
func TestTrainerThatLeavesIsChargedWhatTheDeviceShows(t *testing.T) {
	for _, left := range []bool{true, false} {
		h, now := grown(t)
		granted := h.trainers[0].budget
		h.Step(TrainerGone{At: now + 1, Trainer: "t0", Left: left})
		h.Step(TrainerSeen{At: now + 2, Trainer: "t0", Bytes: demoFloor})
		want := demoFloor
		if !left {
			want += granted // it keeps its last grant for the lease
		}
		if got := h.trainers[0].charge(); got != want {
			t.Errorf("left %v: charged %v, want %v", left, got, want)
		}
	}
}
