package engine

import (
	"context"
	"io"
	"time"

	"github.com/lull-project/lull/size"
)

// Engine is one LLM server.
type Engine interface {
	// Name is the name in the config.
	Name() string
	// Capabilities says what can be seen of the server and done to it. They do
	// not change while it is open.
	Capabilities() Capabilities
	// Observe reads the server. An error wraps ErrUnreachable when nobody
	// answered and ErrNotReady when the server says that it is still starting;
	// any other means that something answered and was not understood.
	Observe(ctx context.Context) (Sample, error)
}

// Bounder is an Engine that keeps its KV cache under a bound.
type Bounder interface {
	Engine
	// SetBound sets the bytes that the KV cache may map without asking. Held may
	// still be above the bound in the Sample that comes back: the caller reads on
	// until it is not. An epoch older than the engine's own gives ErrStaleEpoch.
	SetBound(ctx context.Context, epoch uint64, b size.Bytes) (Sample, error)
}

// Capabilities is what a kind of server lets Lull see and do.
type Capabilities struct {
	// Kind is one of Kinds, never auto.
	Kind string
	// ObservePhysical: Sample.Held is what the server physically maps, by its own
	// books.
	ObservePhysical bool
	// ObserveLogical: Sample.UsageFrac, Running and Waiting are read from the server.
	ObserveLogical bool
	// Bound: the Engine is a Bounder, and confirms.
	Bound bool
	// Reclaim: a bound below Held makes the server give back what it caches.
	Reclaim bool
	// Whole: the bound is the whole pool or nothing, and nothing only while no
	// request is there. Either way may take seconds.
	Whole bool
	// Refuses: while its pool is gone the server fails requests instead of keeping
	// them.
	Refuses bool
	// Static: the pool was allocated at start and no byte of it moves; there is
	// nothing to lend.
	Static bool
	// Preempts: short of blocks, the server preempts running requests.
	Preempts bool
}

// Sample is a server at one moment. Zero is "unknown" for sizes and for PID.
type Sample struct {
	// At is when the answer had been read.
	At time.Time `json:"at"`
	// PID is the server's process, when the server or the config tells it.
	PID int `json:"pid"`
	// Held is the KV bytes physically mapped. A static server holds its Pool.
	Held size.Bytes `json:"held_bytes"`
	// Needed is the part of Held that live requests need.
	Needed size.Bytes `json:"needed_bytes"`
	// Evictable is the part of Held that the server would give back (cached
	// prefixes); 0 for a static server, which gives nothing back.
	Evictable size.Bytes `json:"evictable_bytes"`
	// Cached is the part of Evictable that holds prefixes; PrefixQueries and PrefixHits
	// are the tokens looked up there and found since the server's start. 0 where the
	// server does not say.
	Cached        size.Bytes `json:"cached_bytes,omitempty"`
	PrefixQueries uint64     `json:"prefix_queries,omitempty"`
	PrefixHits    uint64     `json:"prefix_hits,omitempty"`
	// Bound is the most that the KV cache may map, BoundEpoch the order that set
	// it. A static server's Bound is its Pool.
	Bound      size.Bytes `json:"bound_bytes"`
	BoundEpoch uint64     `json:"bound_epoch"`
	// Pool is the whole KV pool, PoolTokens how many tokens it takes; servers that
	// count in tokens leave Pool unknown unless the bytes of a token are given.
	Pool       size.Bytes `json:"pool_bytes"`
	PoolTokens int        `json:"pool_tokens,omitempty"`
	// Resident is the server's bytes that cannot move, beyond Baseline: the bytes
	// its process had before it took device memory.
	Resident size.Bytes `json:"resident_bytes"`
	Baseline size.Bytes `json:"baseline_bytes"`
	// Short is what waiting requests lack beyond Bound.
	Short size.Bytes `json:"short_bytes"`
	// UsageFrac is the fraction of KV blocks in use, 0 to 1; -1 where the server
	// does not say.
	UsageFrac float64 `json:"usage_frac"`
	// Running and Waiting count requests; Preemptions since the server's start.
	Running     int    `json:"running"`
	Waiting     int    `json:"waiting"`
	Preemptions uint64 `json:"preemptions"`
	// BytesPerToken and BlockTokens are the KV geometry; MaxModelLen bounds prompt
	// + answer in tokens.
	BytesPerToken size.Bytes `json:"bytes_per_token"`
	BlockTokens   int        `json:"block_tokens"`
	MaxModelLen   int        `json:"max_model_len"`
	// Note is a sentence about what this server leaves unsaid or does not obey, for
	// the operator; empty when there is nothing to say.
	Note string `json:"note,omitempty"`
}

// Close gives back what an Engine holds open (idle connections, maps).
func Close(e Engine) error {
	if c, ok := e.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
