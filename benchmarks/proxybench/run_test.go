package proxybench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lull-project/lull/size"
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
	cfg.Streams, cfg.LongPrompts, cfg.LoadGap, cfg.Slice, cfg.Rounds = 4, 4, 200*time.Microsecond, 20*time.Millisecond, 1
	cfg.Valgrind = "a program that nobody has"
	cfg.OpenStreams, cfg.ManyStreams, cfg.Unread = 8, 250, 100*time.Millisecond
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
	for i, l := range r.Loads {
		lull := l.Arms[armLull]
		if lull.First.N == 0 || lull.CPU <= 0 || lull.Overhead == nil || lull.Overhead.N < lull.First.N || lull.Overhead.P50 <= 0 || l.Arms[armAgain].CPU != 0 {
			t.Errorf("%s: got %+v, want samples, time on a core and Lull's own account", l.Name, l)
		}
		if blind, ok := l.Arms[armBlind]; ok != (i == 0) || ok && blind.Later.N == 0 {
			t.Errorf("%s: got %+v unread, want the streams beside it only", l.Name, blind)
		}
	}
	for _, plot := range []string{"proxy-first.svg", "proxy-later.svg"} {
		if svg, err := os.ReadFile(filepath.Join(filepath.Dir(cfg.Out), plot)); err != nil || !strings.Contains(string(svg), ">lull<") || !strings.Contains(out.String(), plot) {
			t.Errorf("%s: got %v, want a plot with a curve for lull, and its name said", plot, err)
		}
	}
	if m := r.Memory; m.Before <= 0 || m.After <= 0 || m.Left != 0 || m.Goroutines == 0 {
		t.Errorf("memory: got %+v, want it read, and no goroutine left", m)
	}
	if want := "instructions: valgrind is not installed"; r.Instructions.Missing == "" || !strings.Contains(out.String(), want) {
		t.Errorf("instructions: got %+v, want it said that there are none", r.Instructions)
	}
	if len(r.Loads) != 4 || len(r.Bars) != 13 || r.Machine.Cores == 0 || r.Command != "make bench-proxy" || r.Config.Requests != 10 {
		t.Errorf("got %+v, want loads, bars, machine, command and config", r)
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
		"bench proxy: streams: got 0, want 1 to 4096":                   func(c *Config) { c.Streams = 0 },
		"bench proxy: long_prompts: got 3, want 4 to 4096":              func(c *Config) { c.LongPrompts = 3 },
		"bench proxy: load_gap: got 0s, want more than 0":               func(c *Config) { c.LoadGap = 0 },
		"bench proxy: slice: got 1ms, want 10ms to 1m":                  func(c *Config) { c.Slice = time.Millisecond },
		"bench proxy: rounds: got 0, want at least 1":                   func(c *Config) { c.Rounds = 0 },
		"bench proxy: open_streams: got 0, want 1 to 8192":              func(c *Config) { c.OpenStreams = 0 },
		"bench proxy: many_streams: got 9, want at least 250":           func(c *Config) { c.ManyStreams = 9 },
		"bench proxy: unread: got 0s, want more than 0":                 func(c *Config) { c.Unread = 0 },
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
	of := func(lull *arm, own, memory float64) result {
		arms := map[string]*arm{armDirect: ms(1, 1), armBare: ms(1.2, 1.02), armLull: lull}
		var more []loadResult
		for _, l := range loads(DefaultConfig()) {
			got := map[string]*loadTally{}
			for _, name := range l.arms {
				got[name] = &loadTally{tally: tally{arm: *ms(1, 1)}}
			}
			got[armLull] = &loadTally{tally: tally{arm: *lull}, overheads: ms(own, 0).first}
			more = append(more, newLoadResult(l, l.connections, got))
		}
		mib := func(v float64) size.Bytes { return size.Bytes(v * (1 << 20)) }
		return newResult(DefaultConfig(), arms, more, memoryResult{PerStream: mib(memory / 32), Before: mib(16), After: mib(15 + memory), Slow: mib(memory), Left: int(memory) - 1}, time.Second)
	}
	good := of(ms(1.25, 1.03), 0.25, 1)
	if !good.Met || len(good.Bars) != 13 {
		t.Errorf("got %+v, want all met", good.Bars)
	}
	for _, b := range of(ms(12.5, 1.9), 1, 9).Bars {
		if b.Met {
			t.Errorf("%s: got met with %v, want missed", b.Name, b.Value)
		}
	}
}

func TestLoadIsHalvedForAllWhereOneArmIsLate(t *testing.T) {
	arms, stop, err := startAll(t.Context(), small(t))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	l := load{name: "x", arms: []string{armDirect, armBare, armLull}, connections: 16, events: 2, gap: 1, slice: 10 * time.Millisecond, halve: true}
	if n, err := l.reachable(t.Context(), arms); n != 1 || err != nil { // nothing comes within a nanosecond
		t.Errorf("got %d connections, %v, want one left", n, err)
	}
	l.gap = time.Second
	l.events = 1
	if n, err := l.reachable(t.Context(), arms); n != 16 || err != nil {
		t.Errorf("got %d connections, %v, want all that are in time", n, err)
	}
}

func TestUpstreamRefusesWhatItCannotBeAsked(t *testing.T) {
	for query, want := range map[string]string{
		"events=0":  `events: got "0", want a number of at least 1`,
		"gap=never": `gap: got "never", want a duration of 0 or more`,
	} {
		w := httptest.NewRecorder()
		upstream{events: 1}.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path+"?"+query, nil))
		if w.Code != http.StatusBadRequest || strings.TrimSpace(w.Body.String()) != want {
			t.Errorf("%s: got %d %s, want 400 %s", query, w.Code, w.Body, want)
		}
	}
}

func TestChildWhoseReportMakesNoSenseIsNamed(t *testing.T) {
	for said, want := range map[string]string{
		"":       "bench proxy: a child's report: EOF; stderr: went",
		"what\n": `bench proxy: a child's report: got "what\n": invalid character 'w' looking for beginning of value`,
	} {
		c := &child{cmd: &exec.Cmd{}, stdin: nopWriter{}, stdout: bufio.NewReader(strings.NewReader(said)), log: &strings.Builder{}}
		c.log.WriteString("went")
		if _, err := c.ask(); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

type nopWriter struct{}

func (nopWriter) Write(p []byte) (int, error) { return len(p), nil }
func (nopWriter) Close() error                { return nil }

func TestInstructionsAreWhatEventsAdd(t *testing.T) {
	arms, stop, err := startAll(t.Context(), small(t))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	// As valgrind would, it runs the program and then says what it collected: a fixed
	// part and 7 for each event of this run.
	fake := filepath.Join(t.TempDir(), "valgrind")
	script := "#!/bin/sh\nshift 2\n\"$@\"\nn=$(cat " + fake + ".n 2>/dev/null || echo 0)\necho $((1 - n)) > " + fake + ".n\n" +
		"echo \"==1== Collected : $((1000 + 7 * (n * 1000)))\" >&2\n"
	if err := os.WriteFile(fake, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	r, err := countInstructions(t.Context(), fake, arms[armDirect])
	if err != nil || r.PerEvent[armLull] != 7 || r.PerEvent[armBare] != 7 || r.Tap != 0 || r.Events != 1000 {
		t.Errorf("got %+v, %v, want 7 for an event", r, err)
	}
	if _, err := collected("==1== nothing"); err == nil || err.Error() != `bench proxy: callgrind: got "==1== nothing", want a line with what it collected` {
		t.Errorf("got %v, want the log that has no count", err)
	}
}
