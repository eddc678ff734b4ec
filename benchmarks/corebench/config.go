package corebench

import (
	"fmt"
	"time"
)

// Config is what a run does.
type Config struct {
	// Requests are live while steps are timed, Rounds the timed steps of each kind.
	Requests, Rounds int
	// Settle is how long the idle sidecar is left alone before its CPU time is read
	// over Window.
	Settle, Window time.Duration
	// Exe is the lull program whose serve and emulate are started.
	Exe string
	// Out is the JSON file; empty writes none.
	Out string
	// Command is how the run was started, for the JSON file.
	Command string
}

// DefaultConfig is the run that the project's figures are of.
func DefaultConfig() Config {
	return Config{
		Requests: 1000, Rounds: 20_000, Settle: 3 * time.Second, Window: 10 * time.Second,
		Out: "out/bench/core.json", Command: "make bench-core",
	}
}

// Validate names the key, the value and the rule of the first thing wrong.
func (c Config) Validate() error {
	switch {
	case c.Requests < 1:
		return fmt.Errorf("bench core: requests: got %d, want at least 1", c.Requests)
	case c.Rounds < 1:
		return fmt.Errorf("bench core: rounds: got %d, want at least 1", c.Rounds)
	case c.Settle < 0:
		return fmt.Errorf("bench core: settle: got %v, want 0 or more", c.Settle)
	case c.Window <= 0:
		return fmt.Errorf("bench core: window: got %v, want more than 0", c.Window)
	case c.Exe == "":
		return fmt.Errorf("bench core: exe: got none, want the path of the lull program")
	}
	return nil
}
