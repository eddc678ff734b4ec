package reserve

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/size"
)

// small is a run of the embedded slice with two fixed policies.
func small() Config {
	cfg := DefaultConfig()
	cfg.Idle, cfg.Reserves, cfg.Ratios, cfg.Draws = []time.Duration{0, time.Second}, []size.Bytes{0}, []float64{100}, 1
	return cfg
}

func TestSameConfigGivesTheSameFigures(t *testing.T) {
	var out bytes.Buffer
	a, err := Run(t.Context(), &out, small())
	if err != nil {
		t.Fatal(err)
	}
	b, err := Run(t.Context(), &bytes.Buffer{}, small())
	if err != nil || !reflect.DeepEqual(a, b) {
		t.Errorf("got %+v and %+v, %v", a, b, err)
	}
	if len(a.Fixed) != 2 || len(a.Priced) != 1 || a.Requests != 800 || a.Fixed[0].Lost <= 0 || a.Fixed[0].Shrinks < 10 {
		t.Errorf("got %+v", a)
	}
	if !strings.Contains(out.String(), "priced beats") || !strings.Contains(out.String(), "Azure LLM inference trace 2023") {
		t.Errorf("table:\n%s", out.String())
	}
}

// TestReserveMakesRoomAndCostsSamples: the plain truth of both sides, in the
// world itself.
func TestReserveMakesRoomAndCostsSamples(t *testing.T) {
	cfg := small()
	cfg.Idle, cfg.Reserves = []time.Duration{0}, []size.Bytes{0, 2 * size.GiB}
	r, err := Run(t.Context(), &bytes.Buffer{}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	none, two := r.Fixed[0], r.Fixed[1]
	if two.Waits >= none.Waits/2 || two.Lost <= none.Lost {
		t.Errorf("without %+v, with 2GiB %+v: want fewer waits and fewer samples", none, two)
	}
}

func TestBadConfigNamesKeyValueAndRule(t *testing.T) {
	for want, spoil := range map[string]func(*Config){
		"bench reserve: geometry: got 0B a token in blocks of 16, want more than 0":              func(c *Config) { c.PerToken = 0 },
		"bench reserve: slack: got 0s, want more than 0":                                         func(c *Config) { c.Slack = 0 },
		"bench reserve: draws: got 0, want at least 1":                                           func(c *Config) { c.Draws = 0 },
		"bench reserve: grid: got 0 times idle, 1 reserves, 1 ratios, want at least one of each": func(c *Config) { c.Idle = nil },
		"bench reserve: ratio: got -1, want more than 0 samples a miss":                          func(c *Config) { c.Ratios[0] = -1 },
		"trace: from: got -1s, want 0 or more":                                                   func(c *Config) { c.Part.From = -time.Second },
		"bench reserve: handovers: got {FastFrom:2ms FastTo:8ms SlowFrom:100ms SlowTo:1s Slow:0.9 Lost:0.2}, want times above 0 in order and shares of at most 1 together": func(c *Config) {
			c.Handovers.Slow, c.Handovers.Lost = 0.9, 0.2
		},
	} {
		cfg := small()
		spoil(&cfg)
		if _, err := Run(t.Context(), &bytes.Buffer{}, cfg); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestRunStopsWhenItIsCancelled(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := Run(ctx, &bytes.Buffer{}, small()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestMissingTraceIsNamed(t *testing.T) {
	cfg := small()
	cfg.Trace = "no-such-file.csv"
	if _, err := Run(t.Context(), &bytes.Buffer{}, cfg); err == nil || !strings.Contains(err.Error(), "no-such-file.csv") {
		t.Errorf("got %v", err)
	}
}
