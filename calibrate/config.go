package calibrate

import (
	"fmt"
	"slices"
	"time"

	"github.com/lull-project/lull/endpoint"
)

// Config is one calibration. Errors name fields as the flags of lull calibrate.
type Config struct {
	// Upstream is the server's own address, Model what it is asked for.
	Upstream, Model string
	// TLS is for an https address.
	TLS endpoint.TLS
	// Prompts and Answers are lengths: words of a prompt (about a token each; what
	// counts is the server's own count) and tokens of an answer. Each prompt length
	// is measured with each answer length, Runs times.
	Prompts, Answers []int
	Runs, WarmUp     int
	// Factor is how many times the measured latencies the objectives allow.
	Factor float64
	// MaxSpread is how far nine of ten runs may lie from the fitted TTFT or the mean
	// gap, as a part of it, for a file to be written. Too low, and no real server
	// passes; too high, and a disturbed one does.
	MaxSpread float64
	// Limit ends one request.
	Limit time.Duration
	// Seed draws the prompts and the order of the runs.
	Seed uint64
	// Key goes to the server as a bearer token; it is never printed.
	Key string
	// Write is the config file that gets the objectives; empty writes none. Force
	// writes from a loaded or noisy server too.
	Write string
	Force bool
}

// DefaultConfig measures 40 requests; a server that does ten tokens a second
// takes three minutes for them.
func DefaultConfig() Config {
	return Config{
		Prompts: []int{32, 128, 512, 1024}, Answers: []int{16, 64}, Runs: 5, WarmUp: 3,
		Factor: 4, MaxSpread: 0.25, Limit: 2 * time.Minute, Seed: 1,
	}
}

// Validate names the first flag that breaks its rule.
func (c Config) Validate() error {
	at, err := endpoint.Parse(c.Upstream)
	switch {
	case err != nil:
		return fmt.Errorf("--upstream: %w", err)
	case c.Model == "":
		return fmt.Errorf("--model: got none, want the name of a model that the server has (GET %s/v1/models)", c.Upstream)
	case c.Runs < 3 || c.Runs > 1000:
		return fmt.Errorf("--runs: got %d, want 3 to 1000: a spread needs a few", c.Runs)
	case c.WarmUp < 1 || c.WarmUp > 1000:
		return fmt.Errorf("--warm-up: got %d, want 1 to 1000: the first request of a server pays for what later ones find", c.WarmUp)
	case !(c.Factor >= 1 && c.Factor <= 1000):
		return fmt.Errorf("--factor: got %v, want 1 to 1000: an idle server must meet its objectives", c.Factor)
	case !(c.MaxSpread > 0 && c.MaxSpread <= 10):
		return fmt.Errorf("--max-spread: got %v, want more than 0 and at most 10, such as 0.25", c.MaxSpread)
	case c.Limit <= 0:
		return fmt.Errorf("--limit: got %v, want more than 0", c.Limit)
	}
	if err := c.TLS.Validate(at); err != nil {
		return fmt.Errorf("--%w", err)
	}
	if err := lengths("--prompts", c.Prompts, 1, 2); err != nil {
		return err
	}
	return lengths("--answers", c.Answers, 2, 1)
}

// mostTokens bounds a length: a slipped digit must not ask for a day's answer.
const mostTokens = 1 << 20

// lengths wants so many different lengths, each of at least least.
func lengths(flag string, given []int, least, different int) error {
	for _, n := range given {
		if n < least || n > mostTokens {
			return fmt.Errorf("%s: got %d, want %d to %d", flag, n, least, mostTokens)
		}
	}
	sorted := slices.Sorted(slices.Values(given))
	if n := len(slices.Compact(sorted)); n < different || n < len(given) {
		return fmt.Errorf("%s: got %v, want at least %d, each once", flag, given, different)
	}
	return nil
}
