package kvbudget

import (
	"errors"
	"fmt"

	"github.com/lull-project/lull/size"
)

// Bytes is memory on one device.
type Bytes = size.Bytes

// Layout is how much KV cache a model's tokens take on one device, with layers
// that keep every token and layers that keep a window of them.
type Layout struct {
	// Source says where the numbers come from, for every report that uses them.
	Source string
	// Kind names the attention: "mha", "gqa", "mla", "sliding" or "hybrid".
	Kind string
	// PerToken is the bytes of one token in the layers that keep every token.
	PerToken Bytes
	// Windowed is the bytes of one token in the layers that keep a window, and
	// Window the tokens that those keep; both 0 where there are none.
	Windowed Bytes
	Window   int
	// State is the bytes of one request whatever its tokens, in layers with a
	// constant state (state space, linear attention); 0 where there are none.
	State Bytes
	// BlockTokens is the tokens of one block; 0 counts as 1.
	BlockTokens int
}

// FlatLayout is a layout given by hand: bytes per token and nothing else.
func FlatLayout(perToken Bytes, blockTokens int, source string) (Layout, error) {
	if perToken <= 0 {
		return Layout{}, fmt.Errorf("geometry: bytes per token: got %d, want more than 0", perToken)
	}
	return Layout{Source: source, Kind: "given", PerToken: perToken, BlockTokens: blockTokens}, nil
}

// Block is the bytes of one block in all layers.
func (l Layout) Block() Bytes { return (l.PerToken + l.Windowed) * Bytes(l.blockTokens()) }

// Request is the bytes of one request of that many tokens while it decodes:
// whole blocks in the layers that keep everything, at most the window's in the
// others. A window that is no whole number of blocks is rounded up.
func (l Layout) Request(tokens int) Bytes {
	if tokens <= 0 {
		return 0
	}
	b := l.State + l.whole(tokens)*l.PerToken
	if l.Windowed > 0 {
		b += l.whole(min(tokens, l.Window)) * l.Windowed
	}
	return b
}

// Prefill is the most that a request takes while its prompt is computed in
// passes of at most batched tokens: a windowed layer then holds the window
// before a pass, the pass and one block (vLLM, v1/kv_cache_interface.py,
// SlidingWindowSpec.max_memory_usage_bytes).
func (l Layout) Prefill(tokens, batched int) Bytes {
	if tokens <= 0 {
		return 0
	}
	b := l.State + l.whole(tokens)*l.PerToken
	if l.Windowed > 0 {
		keep := l.whole(min(tokens, l.Window-1+max(batched, 1)))
		b += min(keep+Bytes(l.blockTokens()), l.whole(tokens)+Bytes(l.blockTokens())) * l.Windowed
	}
	return b
}

// String is the layout on one line, source last.
func (l Layout) String() string {
	s := fmt.Sprintf("%s, %d B a token (%v), %v a block of %d tokens", l.Kind, l.PerToken, l.PerToken, l.Block(), l.blockTokens())
	if l.Windowed > 0 {
		s += fmt.Sprintf(", and %d B a token in a window of %d tokens (%v at most)", l.Windowed, l.Window, l.Windowed*Bytes(l.Window))
	}
	if l.State > 0 {
		s += fmt.Sprintf(", and %v a request", l.State)
	}
	return s + "; source: " + l.Source
}

// whole is tokens rounded up to whole blocks.
func (l Layout) whole(tokens int) Bytes {
	block := l.blockTokens()
	return Bytes((tokens + block - 1) / block * block)
}

// grain is the least that a long request grows by.
func (l Layout) grain() Bytes {
	if l.PerToken > 0 {
		return l.PerToken * Bytes(l.blockTokens())
	}
	return l.Block()
}

func (l Layout) blockTokens() int { return max(l.BlockTokens, 1) }

// ErrByHand ends every error about a model whose layout is not known; it says
// what to do instead.
var ErrByHand = errors.New("give the bytes of one token by hand, as in --geometry 128KiB (2 x layers x KV heads x head size x bytes of an element)")
