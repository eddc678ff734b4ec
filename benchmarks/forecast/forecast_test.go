package forecast

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lull-project/lull/benchmarks/traces"
	"github.com/lull-project/lull/kvbudget"
)

func TestConfigErrorsNameKeyValueAndRule(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"trace: rate: got -1": func(c *Config) { c.Part.Rate = -1 },
		"forecast: the embedded trace: got from 1s, for 0s, rate 0, want it whole": func(c *Config) { c.Part.From = time.Second },
		"forecast: layout: got 0 B a token":                                        func(c *Config) { c.Layout = kvbudget.Layout{} },
		"forecast: horizons: got 150ms, want multiples":                            func(c *Config) { c.Horizons[0] = 150 * time.Millisecond },
		"forecast: tbt: got 0s, want 10ms to 1m":                                   func(c *Config) { c.Service.TBT = 0 },
		"forecast: first token: got -1ns":                                          func(c *Config) { c.Service.FirstToken = -1 },
		"forecast: prompt rate: got 0, want at least":                              func(c *Config) { c.Service.PromptRate = 0 },
		"forecast: warmup: got -1ns":                                               func(c *Config) { c.Warmup = -1 },
	} {
		c := DefaultConfig()
		change(&c)
		if _, err := Run(t.Context(), &bytes.Buffer{}, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// rows are requests of 100 + 10 tokens every 300 ms.
func rows(n int) []traces.Row {
	all := make([]traces.Row, n)
	for i := range all {
		all[i] = traces.Row{At: time.Duration(i) * 300 * time.Millisecond, PromptTokens: 100, OutputTokens: 10}
	}
	return all
}

func TestReplayNeedsAPromptFromItsArrivalAndNothingAfterTheLastToken(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Layout, _ = kvbudget.FlatLayout(1, 1, "test")
	w := &world{cfg: cfg, rows: []traces.Row{{PromptTokens: 100, OutputTokens: 3}}}
	// First token at 20 + 10 ms, then every 30 ms: 30, 60, 90, gone at 100.
	for _, c := range []struct {
		at   int
		need kvbudget.Bytes
	}{{0, 100}, {20, 100}, {30, 101}, {60, 102}, {90, 103}, {100, 0}, {110, 0}} {
		w.step(time.Duration(c.at) * time.Millisecond)
		if w.need != c.need {
			t.Errorf("at %d ms: need %d, want %d", c.at, w.need, c.need)
		}
	}
}

func TestWorstCaseIsEveryRequestAtTheLimit(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Layout, _ = kvbudget.FlatLayout(1, 1, "test")
	w := &world{cfg: cfg, rows: []traces.Row{{PromptTokens: 100, OutputTokens: 3}}}
	w.step(0)
	if got := w.worst(50); got != 150 {
		t.Errorf("worst case %d, want 150", got)
	}
}

func TestLargestEqualsAPlainSearch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, ticks := rapid.IntRange(1, 20).Draw(t, "n"), rapid.IntRange(1, 60).Draw(t, "ticks")
		need := make([]float64, n*perDecision+ticks)
		for i := range need {
			need[i] = float64(rapid.IntRange(0, 30).Draw(t, "need"))
		}
		for i, got := range largest(need, ticks, n) {
			if want := slices.Max(need[i*perDecision : i*perDecision+ticks+1]); got != want {
				t.Fatalf("decision %d: %v, want %v", i, got, want)
			}
		}
	})
}

func TestTercilesAreThirdsByNeed(t *testing.T) {
	need := make([]float64, 9*perDecision)
	for i, x := range []float64{5, 1, 9, 2, 8, 3, 7, 4, 6} {
		need[i*perDecision] = x
	}
	if got := terciles(need, 9); !slices.Equal(got, []int{1, 0, 2, 0, 2, 0, 2, 1, 1}) {
		t.Errorf("got %v", got)
	}
}

func TestBurstBeginsWhenASecondHasTwiceTheUsualArrivals(t *testing.T) {
	var b burstWatch
	marked := 0
	for k := range 2000 {
		n := 0
		if k%50 == 0 { // two a second
			n = 1
		}
		if k == 1500 {
			n = 10
		}
		if b.see(n) {
			marked++
			if k < 1500 || k >= 1500+burstAfter {
				t.Fatalf("tick %d is marked", k)
			}
		}
	}
	if b.began != 1 || marked != burstAfter {
		t.Errorf("%d bursts, %d ticks marked, want 1 and %d", b.began, marked, burstAfter)
	}
}

func TestPinballAndCoverage(t *testing.T) {
	if a, b := pinball(10, 14, 0.95), pinball(14, 10, 0.95); math.Abs(a-3.8) > 1e-9 || math.Abs(b-0.2) > 1e-9 {
		t.Errorf("got %v short and %v too many, want 3.8 and 0.2", a, b)
	}
	m := newRolling(10, 0, func(s state) float64 { return s.need })
	for range 2 {
		m.predict(state{})
	}
	m.learn(0)
	m.learn(8)
	m.predict(state{need: 2}) // rises of 0 and 8: an atom of one half at 2
	for _, c := range []struct{ q, came, level, want float64 }{{3, 2, 0.9, 1}, {1, 2, 0.9, 0}, {2, 2, 0.25, 0.5}, {2, 2, 0.9, 1}, {10, 10, 0.95, 0.9}} {
		if got := covered(m, c.q, c.came, c.level); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("covered(%v, %v) at %v = %v, want %v", c.q, c.came, c.level, got, c.want)
		}
	}
	if got := covered(point{}, 2, 2, 0.5); got != 1 {
		t.Errorf("a point that came true covers %v, want 1", got)
	}
}

func TestRollingQuantileEqualsAPlainSort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.IntRange(1, 12).Draw(t, "window")
		r := newRolling(window, 0, func(s state) float64 { return s.need })
		var past []float64
		for range rapid.IntRange(1, 40).Draw(t, "n") {
			need := float64(rapid.IntRange(0, 9).Draw(t, "need"))
			q := r.predict(state{need: need})
			if n := len(past); n > 0 {
				last := slices.Clone(past[max(0, n-window):])
				slices.Sort(last)
				i := int(math.Ceil(0.9*float64(len(last)))) - 1
				if want := need + last[i]; q[1] != want {
					t.Fatalf("90 %% quantile of %v above %v: %v, want %v", last, need, q[1], want)
				}
			}
			came := need + float64(rapid.IntRange(0, 9).Draw(t, "rise"))
			r.learn(came)
			past = append(past, came-need)
		}
	})
}

func TestConformalLevelRisesAfterMisses(t *testing.T) {
	r := newRolling(100, 0.005, func(s state) float64 { return s.need })
	for i := range 5 {
		r.predict(state{})
		r.learn(float64(1 + i))
	}
	if r.level[0] <= levels[0] {
		t.Errorf("the level for %v is %v after misses", levels[0], r.level[0])
	}
}

func TestRunScoresEveryMethodAndSavesTheResult(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Out, cfg.Command = filepath.Join(t.TempDir(), "f.json"), "lull forecast"
	var out bytes.Buffer
	r, err := Run(t.Context(), &out, cfg)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(cfg.Out)
	if err != nil {
		t.Fatal(err)
	}
	var saved Result
	if err := json.Unmarshal(text, &saved); err != nil || len(saved.Horizons) != 3 || saved.Command != "lull forecast" {
		t.Fatalf("saved %+v, %v", saved, err)
	}
	for _, h := range r.Horizons {
		if len(h.Methods) != len(baselineNames)+2 || h.Methods[0].Name != lull || h.Best == "" {
			t.Errorf("%s: %+v", h.Horizon, h)
		}
		for _, m := range h.Methods {
			o := m.group(overall)
			if o.N == 0 || o.P95 < o.P50 || o.P95 > 100 || m.PinballMiB <= 0 || m.group(light).N+m.group(middle).N+m.group(heavy).N != o.N {
				t.Errorf("%s: %+v", h.Horizon, m)
			}
			if !strings.Contains(out.String(), "| "+m.Name+" |") {
				t.Errorf("the table has no row for %s", m.Name)
			}
		}
	}
	if !strings.Contains(r.Trace, "CC-BY 4.0") || !strings.Contains(r.Layout, "source: the default") {
		t.Errorf("trace %q, layout %q: want where both come from", r.Trace, r.Layout)
	}
	again, err := Run(t.Context(), &bytes.Buffer{}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i, h := range again.Horizons {
		for k, m := range h.Methods {
			if !slices.Equal(m.Groups, r.Horizons[i].Methods[k].Groups) || m.PinballMiB != r.Horizons[i].Methods[k].PinballMiB {
				t.Errorf("%s, %s: two runs differ", h.Horizon, m.Name)
			}
		}
	}
}

func TestRunErrors(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Trace = filepath.Join(t.TempDir(), "none.csv")
	if _, err := Run(t.Context(), &bytes.Buffer{}, cfg); err == nil || !strings.Contains(err.Error(), "trace: stat") {
		t.Errorf("no such trace: %v", err)
	}
	if _, err := observe(t.Context(), cfg, &world{cfg: cfg, rows: rows(10)}); err == nil || !strings.Contains(err.Error(), "the trace is 3s long, want more than warmup 1m0s") {
		t.Errorf("a short trace: %v", err)
	}
	far := append(rows(1), traces.Row{At: 300 * 24 * time.Hour})
	if _, err := observe(t.Context(), cfg, &world{cfg: cfg, rows: far}); err == nil || !strings.Contains(err.Error(), "7200h0m0s long, want at most 192h0m0s: give a part with --for") {
		t.Errorf("a long trace: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := observe(ctx, cfg, &world{cfg: cfg, rows: rows(1000)}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestBarsAreJudged(t *testing.T) {
	h := HorizonResult{Methods: []MethodResult{
		{Name: lull, PinballMiB: 9, Groups: []GroupResult{{Group: "overall", N: 900, P95: 92}, {Group: "heavy", N: 300, P95: 95}, {Group: "after bursts", N: 3, P95: 0}}},
		{Name: "a", PinballMiB: 12}, {Name: "b", PinballMiB: 10}, {Name: bound, PinballMiB: 1},
	}}
	h.judge()
	if h.Best != "b" || math.Abs(h.GainPercent-10) > 1e-9 {
		t.Errorf("got %+v, want 10 %% below b", h)
	}
	if want := []string{"pinball 10.0 % below the best baseline, want 15", "P95 covers 92.0 % overall, want 93 to 97"}; !slices.Equal(h.Missed, want) {
		t.Errorf("got %q, want %q", h.Missed, want)
	}
}

func TestPlotsShowAMinuteAndAHalfOfEveryHorizon(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Plot, cfg.PlotFrom = filepath.Join(t.TempDir(), "deep", "x.svg"), 2*time.Minute
	var out bytes.Buffer
	if _, err := Run(t.Context(), &out, cfg); err != nil {
		t.Fatal(err)
	}
	for _, horizon := range []string{"100ms", "1s", "5s"} {
		file := strings.TrimSuffix(cfg.Plot, ".svg") + "-" + horizon + ".svg"
		svg, err := os.ReadFile(file)
		if err != nil || !strings.Contains(out.String(), "wrote "+file) {
			t.Fatalf("%s: got %v, want a plot, and said", horizon, err)
		}
		for _, want := range []string{">what came<", ">P95, Lull<", ">P95, rolling ", ">120<", ">140<", "within " + horizon} {
			if !strings.Contains(string(svg), want) {
				t.Errorf("%s: the plot lacks %q", horizon, want)
			}
		}
	}
	cfg.PlotFrom = 24 * time.Hour
	if _, err := Run(t.Context(), &out, cfg); err == nil || !strings.Contains(err.Error(), "forecast: plot: got nothing from 24h0m0s on, want less than the trace's ") {
		t.Errorf("got %v, want it said that there is nothing to draw", err)
	}
	cfg.PlotFrom = 0
	cfg.Plot = filepath.Join("/dev/null", "x.svg")
	if _, err := Run(t.Context(), &out, cfg); err == nil || !strings.Contains(err.Error(), "forecast: write plot: ") {
		t.Errorf("got %v, want it said that no plot can be written", err)
	}
}

// TestTimeOfDayIsForecastUnlessItIsLeftOut: after four days in which twenty times as
// many came from nine to six as else, it is nine again.
func TestTimeOfDayIsForecastUnlessItIsLeftOut(t *testing.T) {
	more := map[bool]kvbudget.Bytes{}
	for _, on := range []bool{true, false} {
		cfg := DefaultConfig()
		cfg.TimeOfDay = on
		seen, err := newSeen(cfg)
		if err != nil {
			t.Fatal(err)
		}
		f := seen[plain]
		const nine = (4*24 + 9) * time.Hour
		for now := time.Duration(0); now < nine; {
			f.Finish(now, f.Arrive(now, kvbudget.Asked{PromptTokens: 100}), kvbudget.Usage{OutputTokens: 1})
			gap := 40 * time.Second
			if hour := now % (24 * time.Hour) / time.Hour; hour >= 9 && hour < 18 {
				gap = 2 * time.Second
			}
			now += gap
		}
		o := f.Outlook(nine+time.Millisecond, len(cfg.Horizons)-1)
		more[on] = o.Assumed(0.95)
	}
	if more[true] <= more[false] {
		t.Errorf("P95 at nine is %v with the time of day and %v without, want more with it", more[true], more[false])
	}
}
