package proxybench

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if Child() {
		return
	}
	goleak.VerifyTestMain(m)
}

// small is a run that shows nothing but that it works.
func small(t *testing.T) Config {
	cfg := DefaultConfig()
	cfg.Requests, cfg.WarmUp, cfg.Concurrency, cfg.Events = 10, 1, 2, 4
	cfg.Gap, cfg.Pause = 200*time.Microsecond, 100*time.Microsecond
	cfg.Out = filepath.Join(t.TempDir(), "deep", "proxy.json")
	return cfg
}

func TestRunMeasuresEveryArm(t *testing.T) {
	cfg := small(t)
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
	for _, arm := range armNames {
		a := r.Arms[arm]
		if a.First.N != 10 || a.Later.N != 30 || a.First.P50 <= 0 || a.Later.P50 <= 0 || a.First.Max < a.First.P99 {
			t.Errorf("%s: got %+v, want 10 first and 30 later events", arm, a)
		}
		if !strings.Contains(out.String(), arm) {
			t.Errorf("table: got %s, want a row for %s", &out, arm)
		}
	}
	if len(r.Bars) != 4 || r.Machine.Cores == 0 || r.Command != "make bench-proxy" || r.Config.Requests != 10 {
		t.Errorf("got %+v, want bars, machine, command and config", r)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	cfg := small(t)
	cfg.Requests = 1_000_000
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := Run(ctx, io.Discard, cfg); err == nil {
		t.Error("got no error, want the context's end")
	}
}

func TestConfigErrorsNameKeyValueAndRule(t *testing.T) {
	for want, breakIt := range map[string]func(*Config){
		"bench proxy: requests: got 0, want at least 1":                 func(c *Config) { c.Requests = 0 },
		"bench proxy: warm_up: got -1, want 0 or more":                  func(c *Config) { c.WarmUp = -1 },
		"bench proxy: concurrency: got 9999, want 1 to requests (2000)": func(c *Config) { c.Concurrency = 9999 },
		"bench proxy: events: got 1, want at least 2":                   func(c *Config) { c.Events = 1 },
		"bench proxy: gap: got 0s, want more than 0":                    func(c *Config) { c.Gap = 0 },
		"bench proxy: pause: got -1ns, want 0 or more":                  func(c *Config) { c.Pause = -1 },
	} {
		c := DefaultConfig()
		breakIt(&c)
		if err := Run(t.Context(), io.Discard, c); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestSpreadIsExactAndUntrimmed(t *testing.T) {
	var d []time.Duration
	for i := 1000; i > 0; i-- {
		d = append(d, time.Duration(i)*time.Microsecond)
	}
	got := spreadOf(d)
	want := spread{N: 1000, P50: 500, P50Low: 470, P50High: 531, P90: 900, P99: 990, Max: 1000}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := spreadOf(nil); got != (spread{}) {
		t.Errorf("nothing: got %+v, want zeros", got)
	}
}

func TestStampIsFoundHoweverTheEventIsWritten(t *testing.T) {
	for line, want := range map[string]int64{
		`data: {"choices":[{"delta":{"content":"sent_ns=12"}}]}`:                      12,
		`data: {"id": "x", "choices": [{"delta": {"content": "sent_ns=7"}, "n": 1}]}`: 7,
	} {
		if at, ok := stamp([]byte(line)); !ok || at.UnixNano() != want {
			t.Errorf("%s: got %v, %v, want %d", line, at.UnixNano(), ok, want)
		}
	}
	for _, line := range []string{"data: {}", `data: {"content":"sent_ns=x"}`, `data: {"content":"sent_ns=1`} {
		if _, ok := stamp([]byte(line)); ok {
			t.Errorf("%s: got a stamp, want none", line)
		}
	}
}

func TestUnknownRoleIsRefused(t *testing.T) {
	if err := (role{Name: "x"}).play(strings.NewReader(""), io.Discard); err == nil || err.Error() != `role: got "x", want one of [direct bare lull]` {
		t.Errorf("got %v, want the roles named", err)
	}
}

func TestBarsAreJudged(t *testing.T) {
	ms := func(first, later float64) *arm {
		d := func(v float64) []time.Duration { return []time.Duration{time.Duration(v * float64(time.Millisecond))} }
		return &arm{first: d(first), later: d(later)}
	}
	good := newResult(DefaultConfig(), map[string]*arm{armDirect: ms(1, 1), armBare: ms(1.2, 1.02), armLull: ms(1.25, 1.03)}, time.Second)
	if !good.Met {
		t.Errorf("got %+v, want all met", good.Bars)
	}
	slow := newResult(DefaultConfig(), map[string]*arm{armDirect: ms(1, 1), armBare: ms(1.2, 1.02), armLull: ms(2.5, 1.2)}, time.Second)
	for _, b := range slow.Bars {
		if b.Met {
			t.Errorf("%s: got met with %v, want missed", b.Name, b.Value)
		}
	}
}
