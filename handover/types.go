package handover

import (
	"fmt"
	"time"

	"github.com/lull-project/lull/size"
)

// EngineID, TrainerID, DeviceID and RequestID name the parties of the ledger.
// A tensor-parallel engine is one EngineID on several devices; a training job
// is one TrainerID per rank and device.
type (
	EngineID  string
	TrainerID string
	DeviceID  string
	RequestID string
)

// Epoch orders everything that the sidecar tells an engine or a trainer. Its
// high 32 bits are the sidecar's session (raised at every start and kept in the
// device's lock file), its low 32 bits count orders inside the session; so a
// later order compares greater, across restarts too. It fits a JSON number.
type Epoch uint64

// NewEpoch joins a session and a count.
func NewEpoch(session, n uint32) Epoch { return Epoch(session)<<32 | Epoch(n) }

// Session is the sidecar's start that gave the epoch.
func (e Epoch) Session() uint32 { return uint32(e >> 32) }

// String prints "session.count".
func (e Epoch) String() string { return fmt.Sprintf("%d.%d", uint32(e>>32), uint32(e)) }

// Fence is how an engine's memory is kept under its bound (ARCHITECTURE.md,
// "The ledger").
type Fence uint8

const (
	// FenceHard is an engine that takes a bound and confirms it.
	FenceHard Fence = iota
	// FenceArena is an engine that grows into whatever is free.
	FenceArena
	// FenceStatic is an engine whose pool never moves: bound = held = the pool.
	FenceStatic
)

// String is the word used in configs, metrics and transcripts.
func (f Fence) String() string { return [...]string{"hard", "arena", "static"}[f] }

// Outcome says how a request left the queue, once per request. Endings after
// forwarding (client gone, broken stream) are the proxy's and have its words.
type Outcome string

const (
	// OutcomeForwarded left at once: memory sufficed, or the order overlaps the
	// engine's own queueing.
	OutcomeForwarded Outcome = "forwarded"
	// OutcomeHeldForwarded was held and left when the device had confirmed.
	OutcomeHeldForwarded Outcome = "held_forwarded"
	// OutcomeForwardedUnconfirmed was held and left by fail-open: memory was not
	// confirmed in time.
	OutcomeForwardedUnconfirmed Outcome = "forwarded_unconfirmed"
	// OutcomeRejectedDeadline was refused with 503: memory could not come in time.
	OutcomeRejectedDeadline Outcome = "rejected_deadline"
	// OutcomeRejectedCapacity was refused with 429: the queue was full.
	OutcomeRejectedCapacity Outcome = "rejected_capacity"
	// OutcomeClientGone left the queue because its caller did.
	OutcomeClientGone Outcome = "client_gone"
)

// At is the time of an event: an offset from the sidecar's start on a
// monotonic clock. The core compares offsets and never reads a clock.
type At = time.Duration

// Bytes is memory; it prints in binary units.
type Bytes = size.Bytes
