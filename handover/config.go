package handover

import (
	"fmt"
	"slices"
	"time"

	"github.com/lull-project/lull/size"
)

// Config is all that the core is told before its first event. Zero values are
// replaced by those of DefaultConfig where they make no sense.
type Config struct {
	// Session is the sidecar's start count, from the device's lock file.
	Session uint32
	Devices []DeviceConfig
	Engines []EngineConfig

	// Mode is ModeElastic, or ModeStatic: a fixed split by StaticKVFrac, one grant
	// and one bound at start and no orders after.
	Mode Mode
	// StaticKVFrac is the part of the elastic bytes that KV gets under ModeStatic,
	// 0 to 1.
	StaticKVFrac float64

	// Quantum is the unit of budgets. Smaller means more orders, larger lends
	// less. Default 16 MiB.
	Quantum Bytes
	// Reserve is kept out of training beyond what the forecast insures. Default
	// 4 MiB: the insurance covers what comes while a handover takes place, and that
	// is a millisecond or two. Raise it where requests come around the proxy; too
	// high and training loses it all day.
	Reserve Bytes
	// Limit bounds how often and how fast memory is taken from training.
	Limit Limit
	// AckWithin is the deadline of a shrink that a request waits for. Default
	// 12 ms: shorter fails open needlessly, longer eats TTFT.
	AckWithin time.Duration
	// Hold is HoldAuto (hold only where forwarding would do harm) or HoldNever.
	Hold HoldMode
	// Owed is what happens to held requests when an ack stays out past its
	// deadline: OwedFailOpen or OwedRefuse.
	Owed OwedMode
	// QueueLimit bounds the held requests of each engine; beyond it, 429. Default 1024.
	QueueLimit int
	// Quantile is the forecast's quantile that a bound must cover. Default 0.95.
	Quantile float64
	// Horizon is how far the forecast looks when it decides to lend, and the
	// longest that an unused bound waits before it is lent (with prices ten times
	// that). Default 1 s: shorter makes training flap, longer lends less.
	Horizon time.Duration
	// Settle, when above 0, fixes the settling time, which else follows from what
	// handovers take and how requests come: for comparison (lull bench reserve).
	Settle time.Duration
	// Grace is how long after the first event trainers of an earlier session have
	// to say hello: until then bytes that nobody claims do not count as free, and
	// no bound rises. Default 2 s: shorter than a trainer's reconnection and a
	// bound may rise into its memory, longer and a start under load is slow.
	Grace time.Duration
}

// DeviceConfig is one device: the bytes that may be used in all, and those kept
// free against error and races.
type DeviceConfig struct {
	ID       DeviceID
	Capacity Bytes
	Headroom Bytes
}

// EngineConfig is one engine and the devices whose bytes its KV takes: alike, or by
// stages.
type EngineConfig struct {
	ID      EngineID
	Devices []DeviceID
	Fence   Fence
	// Pool is the whole KV pool: the ceiling of any bound. A static engine's may
	// be unknown, 0: it is then part of what the device shows as resident.
	Pool Bytes
	// Resident is the bytes that cannot move, until the device shows more.
	Resident Bytes
	// StartBytes is all that a start needs (weights, pool, workspace): what
	// training leaves free from the engine's death until it is fenced again. 0
	// means the resident bytes and the whole pool: a server that forgot its bound
	// may map all of it, and vLLM fills its pool when it starts.
	StartBytes Bytes
	// Stages, where there are several that are not alike, say what a token takes on
	// which devices; all bytes of the engine are then those of its fullest stage.
	// Without them all its devices are alike.
	Stages []Stage
	// BytesPerToken and BlockTokens are the KV geometry per device.
	BytesPerToken Bytes
	BlockTokens   int
	// MaxModelLen bounds prompt + answer in tokens; 0 unknown.
	MaxModelLen int
	// MinBound is never undercut: the largest single request the engine accepts,
	// so that it can always make progress. 0 means one block.
	MinBound Bytes
	// Whole: its bound is Pool or 0, and 0 only while it has no request. MinBound
	// and reserves mean nothing to it.
	Whole bool
	// Idle is how long a Whole engine must have been without a request before its
	// pool goes: what it cached goes too, and the next request waits until the pool
	// is back. 0 means 30 s.
	Idle time.Duration
	// Await is for a Whole engine that fails requests while its pool is gone (a model
	// that is not loaded): how long one is held for the pool before it goes as it is. 0
	// means that the engine keeps requests until its pool is back.
	Await time.Duration
	// Warm is how many bytes of idle pools a Server keeps: of its Whole engines, those
	// that expect most requests. All engines of a Server have the same.
	Server string
	Warm   Bytes
	// Preempts says that the engine preempts running requests when short.
	Preempts bool
	// AllocDelay is the engine's own arrival → allocation delay, during which a
	// handover costs the request nothing.
	AllocDelay time.Duration
	// MapAhead is, for FenceArena, the longest map-plus-prealloc the engine was
	// seen to take; growth over twice of it stays within half the headroom.
	MapAhead time.Duration
}

// Mode is how the elastic bytes are shared.
type Mode string

// HoldMode is when a request may be held.
type HoldMode string

// OwedMode is the answer to an ack that is owed past its deadline.
type OwedMode string

// The values of the modes, as configs spell them.
const (
	ModeElastic  Mode     = "elastic"
	ModeStatic   Mode     = "static"
	HoldAuto     HoldMode = "auto"
	HoldNever    HoldMode = "never"
	OwedFailOpen OwedMode = "fail_open"
	OwedRefuse   OwedMode = "refuse"
)

// DefaultConfig has every default that does not depend on the machine.
func DefaultConfig() Config {
	return Config{
		Mode:       ModeElastic,
		Quantum:    16 * size.MiB,
		Reserve:    4 * size.MiB,
		Limit:      Limit{PerSecond: 20},
		AckWithin:  12 * time.Millisecond,
		Hold:       HoldAuto,
		Owed:       OwedFailOpen,
		QueueLimit: 1024,
		Quantile:   0.95,
		Horizon:    time.Second,
		Grace:      2 * time.Second,
	}
}

// Validate names the key, the value and the rule of the first thing wrong.
func (c Config) Validate() error {
	switch {
	case c.Mode != ModeElastic && c.Mode != ModeStatic:
		return fmt.Errorf("policy.mode: got %q, want elastic or static", c.Mode)
	case c.StaticKVFrac < 0 || c.StaticKVFrac > 1:
		return fmt.Errorf("policy.static_kv_frac: got %v, want a fraction in [0, 1]", c.StaticKVFrac)
	case c.Quantum <= 0:
		return fmt.Errorf("policy.quantum: got %v, want more than 0", c.Quantum)
	case c.Reserve < 0:
		return fmt.Errorf("policy.reserve: got %v, want 0 or more", c.Reserve)
	case !(c.Limit.PerSecond >= 0):
		return fmt.Errorf("policy.shrink_limit.per_second: got %v, want 0 (no limit) or more", c.Limit.PerSecond)
	case c.Limit.BytesPerSecond < 0:
		return fmt.Errorf("policy.shrink_limit.bytes_per_second: got %v, want 0 (no limit) or more", c.Limit.BytesPerSecond)
	case c.Limit.BytesPerSecond > 0 && c.Limit.BytesPerSecond < c.Quantum:
		return fmt.Errorf("policy.shrink_limit.bytes_per_second: got %v, want at least policy.quantum, %v: less is never taken", c.Limit.BytesPerSecond, c.Quantum)
	case c.Limit.Arrivals && c.Limit.PerSecond == 0 && c.Limit.BytesPerSecond == 0:
		return fmt.Errorf("policy.shrink_limit.arrivals: got true without a limit, want per_second or bytes_per_second beside it")
	case c.AckWithin <= 0:
		return fmt.Errorf("admission.within: got %v, want more than 0", c.AckWithin)
	case c.Hold != HoldAuto && c.Hold != HoldNever:
		return fmt.Errorf("admission.hold: got %q, want auto or never", c.Hold)
	case c.Owed != OwedFailOpen && c.Owed != OwedRefuse:
		return fmt.Errorf("admission.owed: got %q, want fail_open or refuse", c.Owed)
	case c.QueueLimit <= 0:
		return fmt.Errorf("admission.queue_limit: got %d, want more than 0", c.QueueLimit)
	case c.Quantile <= 0 || c.Quantile >= 1:
		return fmt.Errorf("policy.quantile: got %v, want a fraction in (0, 1)", c.Quantile)
	case c.Horizon <= 0:
		return fmt.Errorf("policy.horizon: got %v, want more than 0", c.Horizon)
	case c.Settle < 0:
		return fmt.Errorf("policy.settle: got %v, want 0 or more", c.Settle)
	case c.Grace < 0:
		return fmt.Errorf("policy.grace: got %v, want 0 or more", c.Grace)
	}
	return c.validateParties()
}

func (c Config) validateParties() error {
	devices := map[DeviceID]bool{}
	for _, d := range c.Devices {
		if d.Capacity <= 0 {
			return fmt.Errorf("devices.%s.capacity: got %v, want more than 0", d.ID, d.Capacity)
		}
		if d.Headroom < 0 || d.Headroom >= d.Capacity {
			return fmt.Errorf("devices.%s.headroom: got %v, want at least 0 and below the capacity %v", d.ID, d.Headroom, d.Capacity)
		}
		if devices[d.ID] {
			return fmt.Errorf("devices.%s: named twice, want one entry a device", d.ID)
		}
		devices[d.ID] = true
	}
	engines, warm := map[EngineID]bool{}, map[string]Bytes{}
	for _, e := range c.Engines {
		if engines[e.ID] {
			return fmt.Errorf("engines.%s: named twice, want one entry an engine", e.ID)
		}
		engines[e.ID] = true
		// A static pool that nobody knows stands in the engine's resident bytes.
		if e.Pool < 0 || e.Pool == 0 && e.Fence != FenceStatic {
			return fmt.Errorf("engines.%s.pool: got %v, want more than 0", e.ID, e.Pool)
		}
		if len(e.Devices) == 0 {
			return fmt.Errorf("engines.%s.devices: got none, want at least one", e.ID)
		}
		for i, d := range e.Devices {
			if !devices[d] {
				return fmt.Errorf("engines.%s.devices: got %q, want one of the devices", e.ID, d)
			}
			if slices.Contains(e.Devices[:i], d) {
				return fmt.Errorf("engines.%s.devices: got %q twice, want each device once", e.ID, d)
			}
		}
		if err := e.validateStages(); err != nil {
			return err
		}
		if err := e.validateWhole(); err != nil {
			return err
		}
		if w, told := warm[e.Server]; told && e.Server != "" && w != e.Warm {
			return fmt.Errorf("engines.%s.warm: got %v, want %v as the other engines of %s have", e.ID, e.Warm, w, e.Server)
		}
		warm[e.Server] = e.Warm
		if e.Fence > FenceStatic {
			return fmt.Errorf("engines.%s.fence: got %d, want hard, arena or static", e.ID, e.Fence)
		}
	}
	return nil
}
