package reserve

import (
	"fmt"
	"time"

	"github.com/lull-project/lull/benchmarks/traces"
	"github.com/lull-project/lull/size"
)

// Config is what a run does.
type Config struct {
	// Trace is a file or folder that traces.Open reads; empty is the slice that
	// comes with Lull.
	Trace string
	Part  traces.Options
	// PerToken is the KV of one token, in blocks of BlockTokens.
	PerToken    size.Bytes
	BlockTokens int
	// Slack is what each request may wait for memory before it is a miss.
	Slack time.Duration
	// Idle and Reserves span the grid of fixed policies: how long an unused bound
	// waits before it is lent (0: by the model), and what is kept from training.
	Idle     []time.Duration
	Reserves []size.Bytes
	// Ratios are the prices of a miss, in training samples.
	Ratios []float64
	// Draws is how many times each policy is run, with other handover times.
	Draws int
	// Handovers is the law of the trainer's answers.
	Handovers Law
	// Out is the JSON file; empty writes none. Command is how the run was started.
	Out, Command string
}

// Law is how long a shrink takes: mostly Fast, sometimes Slow, and lost now and
// then.
type Law struct {
	FastFrom, FastTo time.Duration
	SlowFrom, SlowTo time.Duration
	// Slow and Lost are shares of all.
	Slow, Lost float64
}

const (
	// tbt is the engine's time a token, and prefill its prompt tokens a second.
	tbt     = 50 * time.Millisecond
	prefill = 10_000.0
	// topSpeed is the samples a second of a trainer that has all elastic bytes, and
	// pause what a shrink costs it.
	topSpeed = 100.0
	pause    = 20 * time.Millisecond
	quantum  = 64 * size.MiB
)

// DefaultConfig is the run that the project's figures are of.
func DefaultConfig() Config {
	return Config{
		PerToken: 128 * size.KiB, BlockTokens: 16, Slack: 500 * time.Millisecond, Part: traces.Options{Seed: 1},
		Idle:     []time.Duration{0, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second},
		Reserves: []size.Bytes{0, size.GiB / 4, size.GiB / 2, size.GiB, 2 * size.GiB, 5 * size.GiB},
		Ratios:   []float64{10, 100, 1000},
		Draws:    4,
		Handovers: Law{
			FastFrom: 2 * time.Millisecond, FastTo: 8 * time.Millisecond, Slow: 0.05,
			SlowFrom: 100 * time.Millisecond, SlowTo: time.Second, Lost: 0.02,
		},
	}
}

// Validate names the key, the value and the rule of the first thing wrong.
func (c Config) Validate() error {
	if err := c.Part.Validate(); err != nil {
		return err
	}
	switch l := c.Handovers; {
	case c.PerToken <= 0 || c.BlockTokens <= 0:
		return fmt.Errorf("bench reserve: geometry: got %v a token in blocks of %d, want more than 0", c.PerToken, c.BlockTokens)
	case c.Slack <= 0:
		return fmt.Errorf("bench reserve: slack: got %v, want more than 0", c.Slack)
	case c.Draws < 1:
		return fmt.Errorf("bench reserve: draws: got %d, want at least 1", c.Draws)
	case len(c.Idle) == 0 || len(c.Reserves) == 0 || len(c.Ratios) == 0:
		return fmt.Errorf("bench reserve: grid: got %d times idle, %d reserves, %d ratios, want at least one of each", len(c.Idle), len(c.Reserves), len(c.Ratios))
	case l.FastFrom <= 0 || l.FastTo < l.FastFrom || l.SlowFrom <= 0 || l.SlowTo < l.SlowFrom || !(l.Slow >= 0 && l.Lost >= 0 && l.Slow+l.Lost <= 1):
		return fmt.Errorf("bench reserve: handovers: got %+v, want times above 0 in order and shares of at most 1 together", l)
	}
	for _, r := range c.Ratios {
		if !(r > 0) {
			return fmt.Errorf("bench reserve: ratio: got %v, want more than 0 samples a miss", r)
		}
	}
	return nil
}
