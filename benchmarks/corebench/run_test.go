package corebench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// small is a run that shows nothing but that it works.
func small(t *testing.T) Config {
	cfg := DefaultConfig()
	cfg.Requests, cfg.Rounds, cfg.Settle, cfg.Window = 20, 30, 0, 200*time.Millisecond
	cfg.Exe = "no-program"
	cfg.Out = filepath.Join(t.TempDir(), "deep", "core.json")
	return cfg
}

func TestRunMeasuresEveryKindOfStepAndTheIdleSidecar(t *testing.T) {
	if testing.Short() {
		t.Skip("builds lull and starts it twice: left out of -short")
	}
	cfg := small(t)
	cfg.Exe = filepath.Join(t.TempDir(), "lull")
	if out, err := exec.Command("go", "build", "-o", cfg.Exe, "../..").CombinedOutput(); err != nil {
		t.Fatalf("build lull: %v\n%s", err, out)
	}
	var out bytes.Buffer
	if err := Run(t.Context(), &out, cfg); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(cfg.Out)
	if err != nil {
		t.Fatal(err)
	}
	var r result
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	for _, kind := range kinds {
		if s := r.Steps[kind]; s.N != 30 || s.Mean <= 0 || s.Max < s.P99 || s.P99 < s.P50 {
			t.Errorf("%s: got %+v, want 30 steps", kind, s)
		}
		if !strings.Contains(out.String(), kind) {
			t.Errorf("table: got %s, want a row for %s", &out, kind)
		}
	}
	if len(r.Bars) != 2*len(kinds)+1 || r.Machine.Cores == 0 || r.Requests != 20 || r.Command != "make bench-core" || r.Idle.WindowS != 0.2 {
		t.Errorf("got %+v, want bars, machine, command and the idle sidecar", r)
	}
}

func TestTimedCoreHasTheRequestsLiveAndNothingHeld(t *testing.T) {
	c, err := newCore(1000)
	if err != nil {
		t.Fatal(err)
	}
	s := c.h.Snapshot()
	if len(s.Queue) != 0 || len(s.Engines) != 1 || s.Engines[0].Live != 1000 {
		t.Errorf("got %d held and engines %+v, want none held and 1000 live", len(s.Queue), s.Engines)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, io.Discard, small(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's end", err)
	}
}

func TestErrorsSayWhatWasSeenAndWanted(t *testing.T) {
	for want, breakIt := range map[string]func(*Config){
		"bench core: requests: got 0, want at least 1":             func(c *Config) { c.Requests = 0 },
		"bench core: rounds: got 0, want at least 1":               func(c *Config) { c.Rounds = 0 },
		"bench core: settle: got -1ns, want 0 or more":             func(c *Config) { c.Settle = -1 },
		"bench core: window: got 0s, want more than 0":             func(c *Config) { c.Window = 0 },
		"bench core: exe: got none, want the path of the lull pro": func(c *Config) { c.Exe = "" },
		"bench core: start emulate: ":                              func(*Config) {}, // there is no such program
		`bench core: start emulate: got "", want a ready line`:     func(c *Config) { c.Exe = "/bin/false" },
	} {
		c := small(t)
		breakIt(&c)
		if err := Run(t.Context(), io.Discard, c); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for in, want := range map[string]string{
		"7 (a) b) S 1 2":                       "got 3 fields after the name, want at least 13",
		"7 (lull) S 1 2 3 4 5 6 7 8 9 10 x 12": `utime: got "x", want a number`,
		"7 (lull) S 1 2 3 4 5 6 7 8 9 10 11 x": `stime: got "x", want a number`,
	} {
		if _, err := parseTicks(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", in, err, want)
		}
	}
	if got, err := parseTicks("7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13"); err != nil || got != 11+12 {
		t.Errorf("got %d, %v, want 23 ticks", got, err)
	}
}

func FuzzParseTicks(f *testing.F) {
	f.Add("7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13")
	f.Fuzz(func(_ *testing.T, stat string) { _, _ = parseTicks(stat) })
}

func TestBarsAreJudgedByMeanAndP99(t *testing.T) {
	steps := func(us ...float64) map[string][]time.Duration {
		took := map[string][]time.Duration{}
		for _, kind := range kinds {
			for _, v := range us {
				took[kind] = append(took[kind], time.Duration(v*1e3))
			}
		}
		return took
	}
	if r := newResult(DefaultConfig(), steps(1, 2, 20), 0.009); !r.Met {
		t.Errorf("got %+v, want all met", r.Bars)
	}
	r := newResult(DefaultConfig(), steps(1, 2, 21), 0.01)
	for _, b := range r.Bars {
		if mean := strings.Contains(b.Name, "mean"); b.Met != mean {
			t.Errorf("%s: got %v with %v, want the means met and all else missed", b.Name, b.Met, b.Value)
		}
	}
	if got, want := spreadOf([]time.Duration{3000, 1000}), (spread{N: 2, Mean: 2, P50: 2, P99: 3, Max: 3}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := spreadOf(nil); got != (spread{}) {
		t.Errorf("nothing: got %+v, want zeros", got)
	}
}
