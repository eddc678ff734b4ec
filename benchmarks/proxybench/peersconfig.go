package proxybench

import (
	"fmt"
	"time"
)

// PeersConfig is what one run beside other proxies does.
type PeersConfig struct {
	// Peers are names of package peers; none means all.
	Peers []string
	// Rate is the load of the first run, requests a second. Default 1000.
	Rate float64
	// Slice is how long one arm takes the load before the next one does. Default 2s:
	// shorter ones measure the change, longer ones let the machine drift between arms.
	Slice time.Duration
	// Rounds is how often each arm has its slice, in a new order each time. Default
	// 10.
	Rounds int
	// Connections is how many an arm's slice opens. Default 32; with fewer than the
	// requests that are open at once, requests wait in the client.
	Connections int
	// Capacity is how long each arm is asked for all that it can carry, before the
	// second run. Default 3s.
	Capacity time.Duration
	// Events, Gap and Prompt (bytes) are those of each answer and request. Default 4,
	// 2ms and 200.
	Events int
	Gap    time.Duration
	Prompt int
	// Seed orders the arms and times the requests. Default 1.
	Seed uint64
	// Out is the JSON file. Default out/bench/peers.json; empty writes none.
	Out string
	// Command is what the result names as the way to make it again.
	Command string
}

// DefaultPeersConfig has every default.
func DefaultPeersConfig() PeersConfig {
	return PeersConfig{
		Rate: 1000, Slice: 2 * time.Second, Rounds: 10, Connections: 32, Capacity: 3 * time.Second,
		Events: 4, Gap: 2 * time.Millisecond, Prompt: 200, Seed: 1, Out: "out/bench/peers.json", Command: "make bench-peers",
	}
}

// Validate names the key, the value and the rule of the first thing wrong.
func (c PeersConfig) Validate() error {
	switch {
	case c.Rate < 1 || c.Rate > 100_000:
		return fmt.Errorf("bench peers: rate: got %v, want 1 to 100000 requests a second", c.Rate)
	case c.Slice < 100*time.Millisecond || c.Slice > time.Minute:
		return fmt.Errorf("bench peers: slice: got %v, want 100ms to 1m", c.Slice)
	case c.Rounds < 1:
		return fmt.Errorf("bench peers: rounds: got %d, want at least 1", c.Rounds)
	case c.Connections < 1 || c.Connections > 1024:
		return fmt.Errorf("bench peers: connections: got %d, want 1 to 1024", c.Connections)
	case c.Capacity < 100*time.Millisecond || c.Capacity > time.Minute:
		return fmt.Errorf("bench peers: capacity: got %v, want 100ms to 1m", c.Capacity)
	case c.Events < 2:
		return fmt.Errorf("bench peers: events: got %d, want at least 2", c.Events)
	case c.Gap <= 0:
		return fmt.Errorf("bench peers: gap: got %v, want more than 0", c.Gap)
	case c.Prompt < 5:
		return fmt.Errorf("bench peers: prompt: got %d bytes, want at least 5", c.Prompt)
	}
	return nil
}
