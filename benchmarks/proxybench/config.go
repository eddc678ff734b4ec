package proxybench

import (
	"fmt"
	"time"
)

// Config is what one run does.
type Config struct {
	// Requests is the number per arm, after warm-up. Default 2000: below 1000 the
	// P99 rests on a handful of samples.
	Requests int
	// WarmUp is the number per arm and worker that is not counted. Default 25.
	WarmUp int
	// Concurrency is the number of clients, each with one connection per arm.
	// Default 4.
	Concurrency int
	// Events is the number of events in an answer. Default 8, the first one at
	// once.
	Events int
	// Gap is the time between two events. Default 2ms; below the cost of a wake-up
	// events merge, far above it the run takes long.
	Gap time.Duration
	// Pause is the mean time between a client's requests. Default 4ms; 0 measures
	// a loaded machine rather than the path.
	Pause time.Duration
	// Seed orders the arms and the pauses. Default 1.
	Seed uint64
	// Out is the JSON file. Default out/bench/proxy.json; empty writes none.
	Out string
	// Command is what the result names as the way to make it again.
	Command string
}

// DefaultConfig has every default.
func DefaultConfig() Config {
	return Config{
		Requests: 2000, WarmUp: 25, Concurrency: 4, Events: 8, Gap: 2 * time.Millisecond,
		Pause: 4 * time.Millisecond, Seed: 1, Out: "out/bench/proxy.json", Command: "make bench-proxy",
	}
}

// Validate names the key, the value and the rule of the first thing wrong.
func (c Config) Validate() error {
	switch {
	case c.Requests < 1:
		return fmt.Errorf("bench proxy: requests: got %d, want at least 1", c.Requests)
	case c.WarmUp < 0:
		return fmt.Errorf("bench proxy: warm_up: got %d, want 0 or more", c.WarmUp)
	case c.Concurrency < 1 || c.Concurrency > c.Requests:
		return fmt.Errorf("bench proxy: concurrency: got %d, want 1 to requests (%d)", c.Concurrency, c.Requests)
	case c.Events < 2:
		return fmt.Errorf("bench proxy: events: got %d, want at least 2", c.Events)
	case c.Gap <= 0:
		return fmt.Errorf("bench proxy: gap: got %v, want more than 0", c.Gap)
	case c.Pause < 0:
		return fmt.Errorf("bench proxy: pause: got %v, want 0 or more", c.Pause)
	}
	return nil
}
