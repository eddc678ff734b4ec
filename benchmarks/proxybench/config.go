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
	// Streams are open at once in the row of many streams, each with 50 events a
	// second. Default 256.
	Streams int
	// LongPrompts are the connections with a 220 KB prompt each; a quarter as many
	// send 1 MB. Default 100.
	LongPrompts int
	// LoadGap is the time between two events of such loads. Default 20ms.
	LoadGap time.Duration
	// Slice is how long an arm takes such a load before the next one does, Rounds
	// how often. Defaults 3s and 5.
	Slice  time.Duration
	Rounds int
	// OpenStreams are open at once when the memory of a stream is measured, and
	// ManyStreams come and go when its return is. Defaults 1000 and 10000.
	OpenStreams, ManyStreams int
	// Unread is how long a client that does not read is watched. Default 3s.
	Unread time.Duration
	// Valgrind is the program that counts instructions; where it is not installed the
	// result says so. Default valgrind.
	Valgrind string
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
		Pause: 4 * time.Millisecond, Streams: 256, LongPrompts: 100, LoadGap: 20 * time.Millisecond, Slice: 3 * time.Second, Rounds: 5,
		OpenStreams: 1000, ManyStreams: 10_000, Unread: 3 * time.Second, Valgrind: "valgrind", Seed: 1, Out: "out/bench/proxy.json", Command: "make bench-proxy",
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
	case c.Streams < 1 || c.Streams > 4096:
		return fmt.Errorf("bench proxy: streams: got %d, want 1 to 4096", c.Streams)
	case c.LongPrompts < 4 || c.LongPrompts > 4096:
		return fmt.Errorf("bench proxy: long_prompts: got %d, want 4 to 4096", c.LongPrompts)
	case c.LoadGap <= 0:
		return fmt.Errorf("bench proxy: load_gap: got %v, want more than 0", c.LoadGap)
	case c.Slice < 10*time.Millisecond || c.Slice > time.Minute:
		return fmt.Errorf("bench proxy: slice: got %v, want 10ms to 1m", c.Slice)
	case c.Rounds < 1:
		return fmt.Errorf("bench proxy: rounds: got %d, want at least 1", c.Rounds)
	case c.OpenStreams < 1 || c.OpenStreams > 8192:
		return fmt.Errorf("bench proxy: open_streams: got %d, want 1 to 8192", c.OpenStreams)
	case c.ManyStreams < 5*shortConnections:
		return fmt.Errorf("bench proxy: many_streams: got %d, want at least %d", c.ManyStreams, 5*shortConnections)
	case c.Unread <= 0:
		return fmt.Errorf("bench proxy: unread: got %v, want more than 0", c.Unread)
	}
	return nil
}
