package handover

import (
	"time"

	"github.com/lull-project/lull/kvbudget"
)

// engine is one LLM server in the ledger. Bytes are per device: all of its devices
// alike, or those of its fullest stage (stages.go).
type engine struct {
	cfg      EngineConfig
	devices  []*device
	scales   []scale // of its devices
	pred     *kvbudget.Forecaster
	resident Bytes // high-water
	held     Bytes
	needed   Bytes // of held, by live requests
	requests []*request
	largest  Bytes // the largest live request at its end
	queued   Bytes // expected need of its held requests
	parked   int   // how many those are

	bound     Bytes // as last told
	mayMap    Bytes // the largest bound that it may still obey
	confirmed Bytes // as it last confirmed
	epoch     Epoch // of the last SetBound
	proven    Epoch // of the last confirmed SetBound
	settled   bool  // the last SetBound is confirmed
	retryAt   At    // when an unconfirmed SetBound is repeated
	retryWait time.Duration
	fallAt    At            // when the last SetBound went out that is a fall below held, 0 none
	falls     time.Duration // how long the slower of such falls took to be confirmed, 0 unknown

	seen, fenced, down bool
	dead               bool     // it is down, and its process is gone
	unread             bool     // the last reading failed; what is known of it is old
	keepsEpochs        bool     // its samples carry the epoch of its bound
	unexplained        [2]Bytes // KV beyond our requests, the last two samples
	short              Bytes    // what waiting requests lack under the bound
	missed             Bytes    // the bound that they need; 0 when nothing is short

	restUntil At   // a pool that could not be moved stays as it is until then
	rests     bool // that is now

	delay    allocDelay
	ins      insurance
	prefixes prefixes
	usage    lookups // by the usage of its answers

	target, lend Bytes // see forecast
	wish         Bytes // planned bound of this Step
	// Of target and must, what the tightest device can come to have room for (reach).
	reachable, reachableMust Bytes
	calm                     bool // the bound is too large; the excess is lent at calmUntil
	calmUntil                At
	calmMost                 Bytes // largest lend target since it is
	lending                  bool  // the bound came down for training, which has not got it yet
	share                    Bytes // ModeStatic: its bound, 0 not yet split
}

// boundWait is how long a SetBound may stay without an answer before it is
// repeated: far above any round trip to a live engine.
const boundWait = time.Second

// maxBoundWait caps the backoff of repeated SetBounds.
const maxBoundWait = 5 * time.Second

// mostWait is maxBoundWait, but for a pool that does not go.
func (e *engine) mostWait() time.Duration {
	if e.cfg.Whole && e.bound == 0 {
		return wholeIdle
	}
	return maxBoundWait
}

// kv is the most KV that the engine may map.
func (e *engine) kv() Bytes { return max(e.bound, e.mayMap, e.held) }

// charge is the engine's part of a device's ledger. An engine that is down is charged
// all that its start needs, and never less than resident + bound.
func (e *engine) charge(d *device) Bytes {
	c := e.resident + e.on(d, e.kv())
	if e.down {
		c = max(c, e.start(d))
	}
	return c
}

// start is all that a start of the engine may take of a device, until it is fenced
// again: StartBytes, or else its resident bytes and its whole pool.
func (e *engine) start(d *device) Bytes {
	if e.cfg.StartBytes > 0 {
		return e.cfg.StartBytes
	}
	return e.resident + e.on(d, e.cfg.Pool)
}

// startKV is the KV that it may take with its start.
func (e *engine) startKV() Bytes {
	if e.cfg.StartBytes > 0 {
		return min(max(0, e.cfg.StartBytes-e.resident), e.cfg.Pool)
	}
	return e.cfg.Pool
}

// usable is the bound that requests may count on: a rise counts when the engine
// has confirmed it.
func (e *engine) usable() Bytes {
	if e.cfg.Fence != FenceHard {
		return e.bound
	}
	return min(e.bound, e.confirmed)
}

// fits says that its devices have room for a bound, for ModeStatic.
func (e *engine) fits(bound Bytes) bool {
	for _, d := range e.devices {
		if e.on(d, bound)-e.on(d, e.kv()) > max(0, d.free()) {
			return false
		}
	}
	return true
}

// block is the bytes of one block.
func (e *engine) block() Bytes { return e.pred.Layout().Block() }

// foreign is KV in use that none of our requests explains (batch APIs, other
// proxies): the smaller of the last two samples, since one may be read between
// a request's end and its blocks' return.
func (e *engine) foreign() Bytes { return min(e.unexplained[0], e.unexplained[1]) }

// needsRoom is the expected need that counts against the bound, held requests
// included.
func (e *engine) needsRoom() Bytes { return e.pred.Need() + e.foreign() }

// setBound tells the engine its bound. A rise is charged at once, a fall when
// it is confirmed.
func (h *Handover) setBound(e *engine, b Bytes, reason string) {
	if reason != reasonRetry { // of which the lending and the fall go on
		e.lending, e.fallAt = reason == reasonLend, 0
		if b < e.held {
			e.fallAt = h.now
		}
	}
	e.bound = b
	e.calm = false
	e.settled = false
	if e.cfg.Fence == FenceArena {
		// Nobody is told: an arena engine takes what is free. A rise is real as soon
		// as the bytes are; a fall when a later sample shows that held fits.
		e.settled = b >= e.mayMap
		e.mayMap = max(e.mayMap, b)
		return
	}
	e.mayMap = max(e.mayMap, b)
	e.epoch = h.nextEpoch()
	e.retryWait = boundWait
	e.retryAt = h.now + e.retryWait
	h.emitBound(SetBound{Epoch: e.epoch, Engine: e.cfg.ID, Bytes: b, Reason: reason})
}

// boundConfirmed takes the engine's word that it obeys the last SetBound.
func (e *engine) boundConfirmed(now At, bound, held Bytes) {
	if e.fallAt > 0 && held <= e.bound { // else it waits for requests to end
		e.falls = max(now-e.fallAt, e.falls-e.falls/fallsMemory)
		e.fallAt = 0
	}
	e.settled, e.fenced = true, true
	e.proven = e.epoch
	e.confirmed = bound
	e.mayMap = max(e.bound, bound) // an engine may refuse to go below what it holds
	e.held = held
}

// fallsMemory is by what part of itself the time of falls fades with each.
const fallsMemory = 16
