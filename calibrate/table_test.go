package calibrate

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/slo"
)

var rewrite = flag.Bool("rewrite", false, "write what was printed into testdata")

// steady are measurements of a server with 35 ms + 80 us a token and 19 ms a gap.
func steady(cfg Config) []Measured {
	var all []Measured
	for round := range cfg.Runs {
		for _, c := range cfg.cells() {
			jitter := time.Duration(round) * 100 * time.Microsecond
			m := Measured{Words: c.words, Answer: c.answer, PromptTokens: c.words + 9, OutputTokens: c.answer}
			m.TTFT = 35*ms + time.Duration(m.PromptTokens)*80*time.Microsecond + jitter
			for range c.answer - 1 {
				m.Gaps = append(m.Gaps, 19*ms+jitter)
			}
			m.E2E = m.TTFT + time.Duration(len(m.Gaps))*(19*ms+jitter)
			all = append(all, m)
		}
	}
	return all
}

func result(t *testing.T, change func(*Config, []Measured)) Result {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Upstream, cfg.Model = "http://127.0.0.1:8000", "m"
	all := steady(cfg)
	if change != nil {
		change(&cfg, all)
	}
	r, err := summarise(cfg, all)
	if err != nil {
		t.Fatal(err)
	}
	r.Load = Load{Kind: "vllm", Known: true, Looks: 45}
	return r
}

// golden compares with a file, or writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%s\nwant %s (-rewrite changes it)\n%s", got, path, want)
	}
}

func TestPrintedTable(t *testing.T) {
	for name, change := range map[string]func(*Result){
		"steady.txt":  func(*Result) {},
		"loaded.txt":  func(r *Result) { r.Load.Others = 3 },
		"unknown.txt": func(r *Result) { r.Load = Load{Kind: "openai"}; r.Plain = true; r.Config.Factor = 2.5 },
	} {
		r := result(t, nil)
		change(&r)
		var b strings.Builder
		if err := r.Print(&b); err != nil {
			t.Fatal(err)
		}
		golden(t, name, b.String())
	}
}

func TestObjectivesAreFactorTimesWhatWasMeasured(t *testing.T) {
	r := Result{Config: Config{Factor: 4}, TTFT: slo.Fit{Line: slo.Line{Base: 35_123_456, PerToken: 80_004, Factor: 1}}, Gap: Gap{Mean: 19_001_234}}
	o := r.Objective()
	if o.TTFT != 35_120*time.Microsecond || o.TTFTPerToken != 80*time.Microsecond || o.TTFTFactor != 4 || o.TBT != 76*ms {
		t.Errorf("got %+v, want 35.12ms + 80us a token, 4 times, and 76ms", o)
	}
	r.TTFT.Base = 0
	if o := r.Objective(); o.TTFT != leastBase {
		t.Errorf("got %v for a fit through the origin, want %v: a limit for prompts of unknown length", o.TTFT, leastBase)
	}
}

func TestRefusalsNameTheRule(t *testing.T) {
	if got := result(t, nil).Refusals(); len(got) != 0 {
		t.Errorf("a steady idle server: %q, want nothing against it", got)
	}
	for name, c := range map[string]struct {
		r    Result
		want string
	}{
		"loaded": {func() Result { r := result(t, nil); r.Load.Others = 2; return r }(),
			"loaded: the server had up to 2 requests running or waiting beside ours, want 0"},
		"ttft": {result(t, func(_ *Config, all []Measured) {
			for i := range all {
				if i%5 == 0 {
					all[i].TTFT *= 2
				}
			}
		}), "noisy ttft: nine of ten runs stay within "},
		"gaps": {result(t, func(_ *Config, all []Measured) {
			for i := range all {
				if i%2 == 0 {
					all[i].Gaps = slices.Repeat([]time.Duration{57 * ms}, len(all[i].Gaps))
				}
			}
		}), "noisy gaps: nine of ten answers stay within "},
		"no gap": {result(t, func(_ *Config, all []Measured) {
			for i := range all {
				all[i].Gaps = []time.Duration{0}
			}
		}), "no gap: every answer came at once, so there is nothing to promise on gaps"},
	} {
		got := c.r.Refusals()
		if len(got) != 1 || !strings.HasPrefix(got[0], c.want) {
			t.Errorf("%s: got %q, want %q alone", name, got, c.want)
		}
	}
}

func TestRowHasTheMediansOfItsCell(t *testing.T) {
	r := result(t, nil)
	want := Row{PromptTokens: 137, OutputTokens: 16, N: 5, TTFT: 46160 * time.Microsecond, TTFTLeast: 45960 * time.Microsecond, TTFTMost: 46360 * time.Microsecond,
		Gaps: 75, GapMean: 19200 * time.Microsecond, GapP99: 19400 * time.Microsecond, E2E: 46160*time.Microsecond + 15*19200*time.Microsecond}
	if got := r.Rows[2]; got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
