package demo

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/lull-project/lull/size"
)

// sidecarConfig is what a phase tells `lull serve`.
type sidecarConfig struct {
	StateDir, Socket, Events string
	Capacity, Headroom       size.Bytes
	EngineKind, EngineURL    string
	EnginePID                int
	EnginePage               string
	Mode                     string
	StaticKVFrac             float64
	SLO                      Objectives
	Yield, Pace              string // auto or never; empty is never
	Quantum                  size.Bytes
}

// deviceID is the device's name in lull.yaml; startBudget is what the trainer
// uses before it has seen a sidecar.
const (
	deviceID    = "host0"
	startBudget = "16MiB"
)

// yaml renders the file for `lull serve --config`; all that it does not say
// stays at the defaults, so that the demo measures what a user gets.
func (c sidecarConfig) yaml() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("listen: %q", "127.0.0.1:0")
	line("state_dir: %q", c.StateDir)
	line("admin: {listen: %q}", "127.0.0.1:0")
	line("devices:")
	line("  - {id: %s, kind: host, capacity: %dB, headroom: %dB}", deviceID, int64(c.Capacity), int64(c.Headroom))
	line("engines:")
	line("  - {name: main, kind: %s, url: %q, devices: [%s], pid: %d, page: %q}", c.EngineKind, c.EngineURL, deviceID, c.EnginePID, c.EnginePage)
	line("trainers: {socket: %q}", c.Socket)
	line("policy: {mode: %s, static_kv_frac: %v, quantum: %dB}", c.Mode, c.StaticKVFrac, int64(c.Quantum))
	line("slo: {ttft: %s, tbt: %s}", roundUS(c.SLO.TTFT), roundUS(c.SLO.TBT))
	line("interference: {yield: %s, pace: %s}", cmp.Or(c.Yield, "never"), cmp.Or(c.Pace, "never"))
	line("telemetry: {events: %q}", c.Events)
	return b.String()
}

func roundUS(d time.Duration) time.Duration { return d.Round(time.Microsecond) }
