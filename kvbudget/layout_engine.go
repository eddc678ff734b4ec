package kvbudget

import (
	"fmt"
	"math"
	"strconv"
)

// CacheConfigLayout reads the layout from the labels of vLLM's metric
// vllm:cache_config_info: the pool's bytes over its tokens. Where the engine was
// started without a fixed pool its label is "None"; then pool, as measured on
// the device, stands in.
func CacheConfigLayout(labels map[string]string, pool Bytes) (Layout, error) {
	const name = "vllm:cache_config_info"
	block, err := positiveLabel(name, labels, "block_size")
	if err != nil {
		return Layout{}, err
	}
	blocks, err := positiveLabel(name, labels, "num_gpu_blocks")
	if err != nil {
		return Layout{}, err
	}
	from := "kv_cache_memory_bytes"
	if b, err := positiveLabel(name, labels, from); err == nil {
		pool = Bytes(b)
	} else if pool > 0 {
		from = "the pool as measured"
	} else {
		return Layout{}, fmt.Errorf("%w, or the pool's bytes as measured", err)
	}
	perToken := pool / Bytes(block) / Bytes(blocks)
	if perToken == 0 {
		return Layout{}, fmt.Errorf("%s: pool: got %d B for %d blocks of %d tokens, want at least a byte a token", name, pool, blocks, block)
	}
	return Layout{Source: fmt.Sprintf("%s, %s / (%d blocks of %d tokens)", name, from, blocks, block), Kind: "measured", PerToken: perToken, BlockTokens: int(block)}, nil
}

// positiveLabel is a label that must be a whole number above 0.
func positiveLabel(metric string, labels map[string]string, label string) (int64, error) {
	n, err := strconv.ParseInt(labels[label], 10, 64)
	if err != nil || n < 1 || label == "block_size" && n > maxFactor {
		return 0, fmt.Errorf("%s: %s: got %q, want a whole number above 0", metric, label, labels[label])
	}
	return n, nil
}

const (
	// learnTokens is how many tokens must have moved before a learned layout is
	// believed: less is block rounding.
	learnTokens = 2048
	// learnDecay forgets a move by half after 140 later ones.
	learnDecay = 0.995
)

// LearnedLayout finds the bytes of a token from what an engine holds: the slope
// of Δheld on Δtokens through the origin, by decayed least squares, so that big
// moves, where block rounding is small, count most.
type LearnedLayout struct {
	seen   bool
	held   Bytes
	tokens int
	xy, xx float64 // decayed sums
	moved  float64
}

// Observe takes what the engine holds and the tokens that its live requests
// have, at one moment.
func (e *LearnedLayout) Observe(held Bytes, tokens int) {
	dx, dy := float64(tokens-e.tokens), float64(held-e.held)
	first := !e.seen
	e.seen, e.held, e.tokens = true, held, tokens
	if first || dx == 0 {
		return
	}
	e.xy, e.xx = e.xy*learnDecay+dx*dy, e.xx*learnDecay+dx*dx
	e.moved += math.Abs(dx)
}

// Layout is what was learned. The error says what is missing and what to do.
func (e *LearnedLayout) Layout(blockTokens int) (Layout, error) {
	if e.moved < learnTokens {
		return Layout{}, fmt.Errorf("learned geometry: got %.0f tokens that came and went, want %d; %w", e.moved, learnTokens, ErrByHand)
	}
	per := Bytes(math.Round(e.xy / e.xx))
	if per < 1 {
		return Layout{}, fmt.Errorf("learned geometry: got %d B a token, want more than 0: what the engine holds does not follow its tokens, as with a static pool; %w", per, ErrByHand)
	}
	return Layout{Source: fmt.Sprintf("learned, held bytes against %.0f tokens that came and went", e.moved), Kind: "measured", PerToken: per, BlockTokens: blockTokens}, nil
}
