package sidecar

import (
	"fmt"
	"slices"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/handover"
)

// What a config asks that can be served and is hardly meant: each text begins with
// the key and ": ".

// tight says which devices are smaller than their servers with their whole pools:
// right where a pool is meant to be lent away for good, else a slip of the pen.
func tight(cfg handover.Config) []string {
	var found []string
	for _, d := range cfg.Devices {
		need := d.Headroom
		for _, e := range cfg.Engines {
			if slices.Contains(e.Devices, d.ID) {
				need += e.Resident
				if e.Await == 0 { // models need not all be there at once
					need += e.On(d.ID, e.Pool)
				}
			}
		}
		for _, e := range cfg.Engines {
			if e.Await > 0 && slices.Contains(e.Devices, d.ID) && need+e.Pool > d.Capacity {
				found = append(found, fmt.Sprintf("engines.%s: its %v have no room on %s beside the %v that stay there of %v: once unloaded it does not come back, and its requests get the server's refusal", e.ID, e.Pool, d.ID, need, d.Capacity))
			}
		}
		if need > d.Capacity {
			found = append(found, fmt.Sprintf("devices.%s.capacity: %v is below resident + pool + headroom, %v: the server's KV is bound below its pool even without training", d.ID, d.Capacity, need))
		}
	}
	return found
}

// doubtful says what the config wants of a server that has less.
func doubtful(c config.Engine, s engine.Sample) string {
	key, want := "pool", c.Pool
	if want <= s.Pool {
		key, want = "min_bound", c.MinBound
	}
	if s.Pool <= 0 || want <= s.Pool {
		return ""
	}
	return fmt.Sprintf("engines.%s.%s: %v is more than the server's own pool, %v: what is above it is kept for nobody", c.Name, key, want, s.Pool)
}
