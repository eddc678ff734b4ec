package sidecar

import (
	"strconv"

	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/telemetry"
)

// exportLedger sets the ledger's gauges.
func exportLedger(m *telemetry.Metrics, s handover.State) {
	for _, d := range s.Devices {
		id := string(d.ID)
		for term, b := range map[string]handover.Bytes{
			"capacity": d.Capacity, "headroom": d.Headroom, "free": d.Free, "resident": d.Resident,
			"floor": d.Floor, "budget": d.Budget, "held": d.Held, "kv_bound": d.KVBound, "kv_held": d.KVHeld,
		} {
			m.Memory(id, "all", term, int64(b))
		}
	}
	for _, e := range s.Engines {
		for term, b := range map[string]handover.Bytes{
			"resident": e.Resident, "kv_bound": e.Bound, "kv_held": e.Held, "kv_needed": e.Needed, "kv_target": e.Target,
		} {
			m.Memory("each", string(e.ID), term, int64(b))
		}
	}
	for _, t := range s.Trainers {
		for term, b := range map[string]handover.Bytes{"floor": t.Floor, "budget": t.Budget, "held": t.Held} {
			m.Memory(string(t.Device), string(t.ID), term, int64(b))
		}
	}
}

// rankLabel is a rank as a metric's label.
func rankLabel(rank int64) string { return strconv.FormatInt(rank, 10) }
