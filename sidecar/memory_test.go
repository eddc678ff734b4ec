package sidecar

import (
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
	"github.com/lull-project/lull/trainer"
)

func said(bytes map[string]size.Bytes, costs ...trainer.Cost) *trainer.Report {
	return &trainer.Report{Bytes: bytes, Costs: costs}
}

func TestMemoryIsDividedByOwnerAndCategory(t *testing.T) {
	ledger := &handover.State{
		Engines: []handover.EngineState{{ID: "main", Held: 100, Resident: 50, BoundFall: 8 * time.Millisecond}},
		Trainers: []handover.TrainerState{{
			ID: "gpt/0", Device: "d0", Floor: 400, Held: 90 * size.MiB, Bytes: 400 + 90*size.MiB + 7,
		}},
	}
	words := said(map[string]size.Bytes{"parameters": 100, "gradients": 100, "optimizer": 150, "cached": 10 * size.MiB},
		trainer.Cost{How: "cached", FixedUS: 100, USPerMiB: 100}, trainer.Cost{How: "drop", FixedUS: 1000, USPerMiB: 1000}, trainer.Cost{How: "finish", FixedUS: 200e3})
	got := memoryOf(ledger, map[handover.EngineID]engine.Sample{"main": {Evictable: 40}},
		map[handover.TrainerID]*trainer.Report{"gpt/0": words}, map[handover.TrainerID]size.Bytes{"gpt/0": 50 * size.MiB})
	if len(got) != 2 {
		t.Fatalf("got %+v", got)
	}
	e, tr := got[0], got[1]
	if want := map[string]int64{"kv_cache": 60, "cache": 40, "other": 50}; e.Owner != "main" || e.Device != "each" || e.Party != "engine" || !maps.Equal(e.Bytes, want) {
		t.Errorf("engine: got %+v, want %v", e, want)
	}
	if want := map[string]int64{"5ms": 0, "50ms": 40, "1s": 40}; !maps.Equal(e.Reclaimable, want) {
		t.Errorf("engine: reclaimable %v, want %v: its falls take 8ms", e.Reclaimable, want)
	}
	want := map[string]int64{
		"weights": 100, "gradients": 100, "optimizer_state": 150, "workspace": 50,
		"cache": int64(10 * size.MiB), "activations": int64(80 * size.MiB), "other": 7,
	}
	if tr.Owner != "gpt/0" || tr.Device != "d0" || tr.Party != "trainer" || !maps.Equal(tr.Bytes, want) {
		t.Errorf("trainer: got %+v, want %v", tr.Bytes, want)
	}
	// 5 ms: the 10 MiB that are cached; 50 ms: 40 MiB by dropping; 1 s: all, by ending the microbatch.
	if want := map[string]int64{"5ms": int64(10 * size.MiB), "50ms": int64(40 * size.MiB), "1s": int64(90 * size.MiB)}; !maps.Equal(tr.Reclaimable, want) {
		t.Errorf("trainer: reclaimable %v, want %v", tr.Reclaimable, want)
	}
	if got := memoryOf(nil, nil, nil, nil); got == nil || len(got) != 0 {
		t.Errorf("without a ledger: %v, want an empty list", got)
	}
}

// TestCategoriesAddUpToWhatTheDeviceShows: whatever the trainer says of itself.
func TestCategoriesAddUpToWhatTheDeviceShows(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := func(name string) size.Bytes {
			return size.Bytes(rapid.Int64Range(-1000, 1<<40).Draw(rt, name))
		}
		bytes := max(b("bytes"), 0)
		ts := handover.TrainerState{ID: "a", Floor: max(b("floor"), 0), Bytes: bytes}
		ts.Held = max(0, ts.Bytes-ts.Floor)
		words := said(map[string]size.Bytes{"parameters": b("parameters"), "gradients": b("gradients"), "optimizer": b("optimizer"), "cached": b("cached")},
			trainer.Cost{How: "drop", FixedUS: rapid.Float64Range(0, 1e6).Draw(rt, "fixed"), USPerMiB: rapid.Float64Range(0, 1e6).Draw(rt, "per MiB")})
		m := trainerMemory(ts, words, max(b("least"), 0))
		sum := int64(0)
		for name, v := range m.Bytes {
			if v < 0 {
				rt.Fatalf("%s: %d", name, v)
			}
			sum += v
		}
		if sum != int64(bytes) {
			rt.Fatalf("%v add up to %d, want %d", m.Bytes, sum, bytes)
		}
		last := int64(0)
		for _, w := range reclaimTimes {
			if r := m.Reclaimable[w.name]; r < last || r > int64(ts.Held) {
				rt.Fatalf("reclaimable %v of %v held", m.Reclaimable, ts.Held)
			}
			last = m.Reclaimable[w.name]
		}
	})
}
