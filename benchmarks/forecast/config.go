package forecast

import (
	"fmt"
	"time"

	"github.com/lull-project/lull/benchmarks/traces"
	"github.com/lull-project/lull/kvbudget"
	"github.com/lull-project/lull/size"
)

// Config is what a run does.
type Config struct {
	// Trace is a file or folder that traces.Open reads; empty is the slice that
	// comes with Lull.
	Trace string
	Part  traces.Options
	// Layout turns tokens into bytes.
	Layout kvbudget.Layout
	// Service is the engine that is stood in for.
	Service Service
	// Horizons are scored one by one.
	Horizons []time.Duration
	// Warmup is left out of every score.
	Warmup time.Duration
	// TimeOfDay gives Lull's forecaster a clock: a trace's days begin with it.
	TimeOfDay bool
	// Out is the JSON file; empty writes none. Command is how the run was started.
	Out, Command string
	// Plot, if not empty, names pictures of a minute and a half: NAME-1s.svg and so on,
	// one a horizon. PlotFrom is where they begin, at the earliest after the warm-up.
	Plot     string
	PlotFrom time.Duration
}

// Service is an engine without contention.
type Service struct {
	// FirstToken is the time to the first token beside the prompt's own, which
	// takes one second for PromptRate tokens; TBT is the time of each further one.
	FirstToken, TBT time.Duration
	PromptRate      float64
}

const (
	// tick is the replay's step, and decide how often a forecast is made.
	tick   = 10 * time.Millisecond
	decide = 100 * time.Millisecond
	// longest bounds a replay: 8 bytes a tick are kept.
	longest = 8 * 24 * time.Hour
)

// DefaultConfig is the run that the project's figures are of: the layout is
// Llama-3-8B's.
func DefaultConfig() Config {
	layout, _ := kvbudget.FlatLayout(128*size.KiB, 16, "the default: 128 KiB a token, Llama-3-8B in 16 bits")
	return Config{
		Layout:   layout,
		Service:  Service{FirstToken: 20 * time.Millisecond, TBT: 30 * time.Millisecond, PromptRate: 10_000},
		Horizons: []time.Duration{100 * time.Millisecond, time.Second, 5 * time.Second},
		Warmup:   time.Minute, TimeOfDay: true, Part: traces.Options{Seed: 1},
	}
}

// Validate names the key, the value and the rule of the first thing wrong.
func (c Config) Validate() error {
	if err := c.Part.Validate(); err != nil {
		return err
	}
	if p := c.Part; c.Trace == "" && (p.From != 0 || p.For != 0 || p.Rate != 0 && p.Rate != 1) {
		return fmt.Errorf("forecast: the embedded trace: got from %v, for %v, rate %v, want it whole; give a --trace file to cut or scale", p.From, p.For, p.Rate)
	}
	if err := (kvbudget.ForecastConfig{Layout: c.Layout, Horizons: c.Horizons}).Validate(); err != nil {
		return err
	}
	for _, h := range c.Horizons {
		if h%decide != 0 {
			return fmt.Errorf("forecast: horizons: got %v, want multiples of %v", h, decide)
		}
	}
	switch {
	case c.Service.TBT < tick || c.Service.TBT > time.Minute:
		return fmt.Errorf("forecast: tbt: got %v, want %v to 1m", c.Service.TBT, tick)
	case c.Service.FirstToken < 0 || c.Service.FirstToken > time.Hour:
		return fmt.Errorf("forecast: first token: got %v, want 0 to 1h", c.Service.FirstToken)
	case !(c.Service.PromptRate >= 1):
		return fmt.Errorf("forecast: prompt rate: got %v, want at least 1 token a second", c.Service.PromptRate)
	case c.Warmup < 0:
		return fmt.Errorf("forecast: warmup: got %v, want 0 or more", c.Warmup)
	}
	return nil
}
