package sidecar

import (
	"sort"
	"time"

	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
	"github.com/lull-project/lull/telemetry"
	"github.com/lull-project/lull/trainer"
)

// OwnerMemory is what one owner has on a device, by category. The categories add up
// to its bytes there as the ledger has them.
type OwnerMemory struct {
	// Device is "each" for an engine whose figures hold on each of its devices.
	Device string `json:"device"`
	Owner  string `json:"owner"`
	// Party is engine or trainer.
	Party string `json:"party"`
	// Bytes are by the names of MemoryCategories; those that are 0 are left out.
	Bytes map[string]int64 `json:"bytes"`
	// Reclaimable is what could be taken back within a time, by 5ms, 50ms and 1s, as
	// far as it was measured how long that takes.
	Reclaimable map[string]int64 `json:"reclaimable_bytes"`
}

// MemoryCategories are the names of OwnerMemory.Bytes, in the order in which they are
// shown. An engine's weights and workspace come as one figure from outside: other.
var MemoryCategories = []string{"weights", "kv_cache", "activations", "gradients", "optimizer_state", "workspace", "cache", "other"}

// reclaimTimes are the times of OwnerMemory.Reclaimable.
var reclaimTimes = []struct {
	name string
	time time.Duration
}{{"5ms", 5 * time.Millisecond}, {"50ms", 50 * time.Millisecond}, {"1s", time.Second}}

// memoryOf lays out who has what, engines first, each by name.
func memoryOf(ledger *handover.State, samples map[handover.EngineID]engine.Sample, reports map[handover.TrainerID]*trainer.Report, least map[handover.TrainerID]size.Bytes) []OwnerMemory {
	out := []OwnerMemory{}
	if ledger == nil {
		return out
	}
	for _, e := range ledger.Engines {
		out = append(out, engineRows(e, samples[e.ID])...)
	}
	for _, t := range ledger.Trainers {
		out = append(out, trainerMemory(t, reports[t.ID], least[t.ID]))
	}
	sort.SliceStable(out, func(i, j int) bool {
		a, b := out[i], out[j]
		return a.Party < b.Party || a.Party == b.Party && a.Owner < b.Owner // devices as they come
	})
	return out
}

// engineRows is one row for devices that are alike, and one a device of an engine with
// pipeline stages.
func engineRows(e handover.EngineState, s engine.Sample) (out []OwnerMemory) {
	if len(e.Stages) == 0 {
		return []OwnerMemory{engineMemory(e, s)}
	}
	for _, stage := range e.Stages {
		for _, id := range stage.Devices {
			there, said := e, s
			there.Held, said.Evictable = stage.Held, min(e.On(id, s.Evictable), stage.Held)
			row := engineMemory(there, said)
			row.Device = string(id)
			out = append(out, row)
		}
	}
	return out
}

// engineMemory splits what an engine has: the KV that requests use, what it caches
// beside it, and all that cannot move. A cache goes when the bound falls.
func engineMemory(e handover.EngineState, s engine.Sample) OwnerMemory {
	cache := min(s.Evictable, e.Held)
	m := OwnerMemory{Device: "each", Owner: string(e.ID), Party: "engine", Bytes: map[string]int64{}, Reclaimable: map[string]int64{}}
	m.add("kv_cache", e.Held-cache)
	m.add("cache", cache)
	m.add("other", e.Resident)
	for _, w := range reclaimTimes {
		b := size.Bytes(0)
		if e.BoundFall > 0 && e.BoundFall <= w.time {
			b = cache
		}
		m.Reclaimable[w.name] = int64(b)
	}
	return m
}

// trainerMemory splits what the device shows of a trainer: its own word divides the
// floor and what lies above it, and what it does not name is workspace below and
// activations above.
func trainerMemory(t handover.TrainerState, r *trainer.Report, least size.Bytes) OwnerMemory {
	m := OwnerMemory{Device: string(t.Device), Owner: string(t.ID), Party: "trainer", Bytes: map[string]int64{}, Reclaimable: map[string]int64{}}
	said := map[string]size.Bytes{}
	var costs []trainer.Cost
	if r != nil {
		said, costs = r.Bytes, r.Costs
	}
	floor := min(t.Floor, t.Bytes)
	for _, part := range []struct{ name, said string }{{"weights", "parameters"}, {"gradients", "gradients"}, {"optimizer_state", "optimizer"}} {
		b := min(max(said[part.said], 0), floor)
		m.add(part.name, b)
		floor -= b
	}
	m.add("workspace", floor)
	held := t.Held
	cached := min(max(said["cached"], 0), held)
	m.add("cache", cached)
	m.add("activations", held-cached)
	m.add("other", t.Bytes-min(t.Floor, t.Bytes)-held)
	for _, w := range reclaimTimes {
		m.Reclaimable[w.name] = int64(reclaimable(costs, w.time, cached, held-least, held))
	}
	return m
}

// reclaimable is what a trainer can give back within a time, by what each of its ways
// was measured to cost: cached takes what its allocator holds free, drop what is
// above the min budget, and the ways that end a microbatch all of it.
func reclaimable(costs []trainer.Cost, within time.Duration, cached, above, held size.Bytes) (most size.Bytes) {
	limits := map[string]size.Bytes{"cached": cached, "drop": above, "suspend": held, "discard": held, "finish": held}
	for _, c := range costs {
		left := float64(within.Microseconds()) - c.FixedUS
		limit := max(limits[c.How], 0)
		if left < 0 || limit == 0 {
			continue
		}
		b := limit
		if c.USPerMiB > 0 {
			b = min(limit, size.Bytes(min(left/c.USPerMiB, 1<<40)*float64(size.MiB)))
		}
		most = max(most, b)
	}
	return most
}

func (m *OwnerMemory) add(category string, b size.Bytes) {
	if b > 0 {
		m.Bytes[category] += int64(b)
	}
}

// memory is what /metrics shows of owners.
func (v *view) memory() []telemetry.OwnerMemory {
	v.mu.Lock()
	rows := v.state.Memory // laid out anew each time: nobody changes it
	v.mu.Unlock()
	out := make([]telemetry.OwnerMemory, 0, len(rows))
	for _, r := range rows {
		out = append(out, telemetry.OwnerMemory{Device: r.Device, Owner: r.Owner, Bytes: r.Bytes, Reclaimable: r.Reclaimable})
	}
	return out
}
