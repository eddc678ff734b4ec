package model

import (
	"fmt"
	"time"
)

// Config fixes what the modelled server is.
type Config struct {
	// Coefficients give the time of a step.
	Coefficients Coefficients
	// TimeScale divides every step time: 2 is twice as fast. Default 1. Too high
	// and step times come near the jitter of the host's timers.
	TimeScale float64
	// MaxBatchedTokens is how many tokens a step computes at most. Default 512.
	// Lower cuts prompts finer (smaller TBT, longer TTFT), higher the reverse.
	MaxBatchedTokens int
	// MaxSeqs is how many requests run at once at most. Default 256.
	MaxSeqs int
	// MaxModelLen is the most tokens, prompt and answer, of one request. Default 4096.
	MaxModelLen int
	// BlockTokens is how many tokens of one request a block holds. Default 32.
	BlockTokens int
	// BlocksPerPage is how many blocks lie in one page. Default 1.
	BlocksPerPage int
	// Pages is the size of the pool. Default 320. It must hold one request of
	// MaxModelLen.
	Pages int
	// BoundPages is the bound at the start. Default 320, all of the pool.
	BoundPages int
	// MeanOutputTokens is the mean of the geometric distribution that the length
	// of an answer is drawn from when a request does not say it. Default 128.
	MeanOutputTokens int
	// CatchUp is how late a call of Step may be and still have its step end, and
	// the next one start, at the time that was meant: a GPU does not slow down
	// because its host was late. Beyond it the schedule moves. Default 1 s. Shorter
	// makes a busy host slow the modelled GPU; longer lets a process that was
	// stopped answer in one burst.
	CatchUp time.Duration
}

// DefaultConfig is an A100 with Llama-2-13B and a pool of 10,240 tokens.
func DefaultConfig() Config {
	c, err := Calibration("a100|Llama-2-13B")
	if err != nil {
		panic("model: " + err.Error())
	}
	return Config{
		Coefficients: c, TimeScale: 1,
		MaxBatchedTokens: 512, MaxSeqs: 256, MaxModelLen: 4096,
		BlockTokens: 32, BlocksPerPage: 1, Pages: 320, BoundPages: 320,
		MeanOutputTokens: 128, CatchUp: time.Second,
	}
}

// Validate names the first field that breaks its rule.
func (c Config) Validate() error {
	for _, f := range []struct {
		name  string
		value int
	}{
		{"max_batched_tokens", c.MaxBatchedTokens}, {"max_seqs", c.MaxSeqs}, {"max_model_len", c.MaxModelLen},
		{"block_tokens", c.BlockTokens}, {"blocks_per_page", c.BlocksPerPage}, {"pages", c.Pages},
		{"mean_output_tokens", c.MeanOutputTokens},
	} {
		if f.value < 1 {
			return fmt.Errorf("model: %s: got %d, want at least 1", f.name, f.value)
		}
	}
	switch {
	case !(c.TimeScale > 0) || c.TimeScale > 1e6:
		return fmt.Errorf("model: time_scale: got %v, want a number above 0 and at most 1e6", c.TimeScale)
	case c.MaxBatchedTokens < c.MaxSeqs:
		return fmt.Errorf("model: max_batched_tokens: got %d, want at least max_seqs (%d), since every running request computes a token", c.MaxBatchedTokens, c.MaxSeqs)
	case c.Pages < c.pagesFor(c.MaxModelLen):
		return fmt.Errorf("model: pages: got %d, want at least %d, which one request of max_model_len (%d tokens) needs", c.Pages, c.pagesFor(c.MaxModelLen), c.MaxModelLen)
	case c.BoundPages < 0 || c.BoundPages > c.Pages:
		return fmt.Errorf("model: bound_pages: got %d, want 0 to pages (%d)", c.BoundPages, c.Pages)
	case c.CatchUp < 0:
		return fmt.Errorf("model: catch_up: got %v, want 0 or more", c.CatchUp)
	}
	return nil
}

// blocksFor is how many blocks n tokens of one request take.
func (c Config) blocksFor(n int) int { return (n + c.BlockTokens - 1) / c.BlockTokens }

// pagesFor is how many pages n tokens of one request take when no other
// request shares them.
func (c Config) pagesFor(n int) int {
	return (c.blocksFor(n) + c.BlocksPerPage - 1) / c.BlocksPerPage
}
