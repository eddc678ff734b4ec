package demo

import (
	"testing"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/size"
)

func TestRenderedConfigIsWhatTheSidecarReads(t *testing.T) {
	c := sidecarConfig{
		StateDir: "/tmp/a b/state", Socket: "/tmp/a b/lull.sock", Events: "/tmp/e.jsonl",
		Capacity: 1056 * size.MiB, Headroom: 64 * size.MiB, EngineKind: "lull-vllm", EngineURL: "http://127.0.0.1:4242", EnginePID: 77, EnginePage: "/dev/shm/x/main.page",
		Mode: "static", StaticKVFrac: 0.75, Quantum: 8 * size.MiB, SLO: Objectives{TTFT: 135123456 * time.Nanosecond, TBT: 76 * time.Millisecond},
	}
	f, err := config.Parse([]byte(c.yaml()))
	if err != nil {
		t.Fatalf("%v in\n%s", err, c.yaml())
	}
	d, e := f.Devices[0], f.Engines[0]
	switch {
	case f.StateDir != c.StateDir, f.Trainers.Socket != c.Socket, f.Telemetry.Events != c.Events,
		d.Capacity != c.Capacity, d.Headroom != c.Headroom, e.Kind != c.EngineKind, e.URL != c.EngineURL, e.PID != c.EnginePID, e.Page != c.EnginePage,
		f.Policy.Mode != "static", f.Policy.Quantum != c.Quantum, f.Policy.StaticKVFrac != 0.75, f.SLO.TTFT != 135123*time.Microsecond, f.SLO.TBT != 76*time.Millisecond:
		t.Errorf("got %+v from\n%s", f, c.yaml())
	}
}

func TestObjectivesLessConfigIsValid(t *testing.T) {
	c := sidecarConfig{StateDir: "s", Socket: "x", Capacity: size.GiB, EngineKind: "emulator", EngineURL: "http://127.0.0.1:1", Mode: "elastic", Quantum: size.MiB}
	if _, err := config.Parse([]byte(c.yaml())); err != nil {
		t.Errorf("%v in\n%s", err, c.yaml())
	}
}
