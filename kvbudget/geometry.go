package kvbudget

import "github.com/lull-project/lull/size"

// Bytes is memory on one device.
type Bytes = size.Bytes

// Geometry is how an engine lays tokens out in memory, per device.
type Geometry struct {
	// BytesPerToken is the KV of one token in all layers on one device.
	BytesPerToken Bytes
	// BlockTokens is the tokens of one block; a request takes whole blocks.
	BlockTokens int
}

// Block is the bytes of one block.
func (g Geometry) Block() Bytes { return g.BytesPerToken * Bytes(max(g.BlockTokens, 1)) }

// Request is the bytes of one request of that many tokens: whole blocks, as
// vLLM's block manager counts them (ceil(tokens / block size)).
func (g Geometry) Request(tokens int) Bytes {
	if tokens <= 0 {
		return 0
	}
	block := max(g.BlockTokens, 1)
	return Bytes((tokens+block-1)/block) * g.Block()
}
