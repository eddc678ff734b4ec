package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lull-project/lull/size"
)

const (
	// kvcachedSettle is how long after a lower limit was written what the engine
	// holds is believed. A thread of kvcached looks at the segment every 100 ms and
	// says nothing when it has; the engine obeys in its next allocation after that.
	// Two looks and a half: less, and an engine on a busy machine may still grow
	// into bytes that training was given; more makes training grow later.
	kvcachedSettle = 250 * time.Millisecond
	// kvcachedQuiet is the least time between two readings of the server's metrics;
	// the segment is read every time.
	kvcachedQuiet = 250 * time.Millisecond
	// kvcachedMute is how long a server may run requests while its segment says that
	// nothing is mapped, before the segment counts as somebody else's.
	kvcachedMute = 2 * time.Second
)

// kvcached is vLLM or SGLang with the library kvcached, whose KV cache is mapped
// page by page as it is used. What is mapped is read from its shared segment,
// where the limit is set as well; requests are counted by the server's metrics.
type kvcached struct {
	*client
	cfg    Config
	length modelLength
	twins  twins

	readMu   sync.Mutex // one reading of the server at a time
	served   kvcachedServer
	prefixes sglangPrefixes
	muteAt   time.Time // since when requests run over a segment that stays empty

	mu    sync.Mutex // held for a segment's exchange, never for the server's
	note  limitNote
	last  segmentInfo
	lost  limitNote // the note when the server was last gone
	pages pageIDs
	// orderedAt is when the last order was written, waited the epoch whose settling
	// SetBound has waited for, lowest the least held since the order had to be
	// obeyed: above the limit the engine can only lose pages.
	orderedAt time.Time
	waited    uint64
	lowest    size.Bytes
	disobeyed bool
	idleUsed  int64 // used when the server last had no request
}

var _ Bounder = (*kvcached)(nil)

func newKvcached(c Config) *kvcached { return &kvcached{client: newClient(c), cfg: c} }

// Capabilities: a bound that is obeyed in the next allocation, so nothing is
// given back before it.
func (e *kvcached) Capabilities() Capabilities {
	return Capabilities{Kind: KindKvcached, ObservePhysical: true, ObserveLogical: true, Bound: true, Preempts: true}
}

// Observe reads the segment, and now and then the server.
func (e *kvcached) Observe(ctx context.Context) (Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.Timeout)
	defer cancel()
	e.readMu.Lock()
	defer e.readMu.Unlock()
	if err := e.askServer(ctx); err != nil {
		return Sample{}, err
	}
	s, err := e.look(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return Sample{}, fmt.Errorf("engine %s: the server answers, but there is %w; start it with ENABLE_KVCACHED=true KVCACHED_AUTOPATCH=1 and KVCACHED_IPC_NAME, on the same /dev/shm. Nothing is lent", e.name, err)
	}
	if err != nil {
		return Sample{}, fmt.Errorf("engine %s: %w", e.name, err)
	}
	return s, e.checkMute(s)
}

// look reads the segment into a Sample.
func (e *kvcached) look(ctx context.Context) (Sample, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var s Sample
	err := withSegment(ctx, e.cfg.Segment, unix.LOCK_SH, func(_ *os.File, info segmentInfo) error {
		if err := e.left(info); err != nil {
			return err
		}
		e.follow(info, false)
		s = e.sample(info)
		return nil
	})
	return s, err
}

// left finds a segment that a server left behind: its successor would have written
// a limit of its own, and one that was not gone at all goes on writing; mu is held.
func (e *kvcached) left(info segmentInfo) error {
	if l := e.lost; l.Written > 0 && l.Inode == info.inode && size.Bytes(info.limit) == l.Written {
		if info.used != e.last.used || info.ahead != e.last.ahead {
			e.note, e.lost = l, limitNote{}
			return nil
		}
		return fmt.Errorf("segment %s is left from a server that is gone: it still has Lull's limit of %v, and the server that answers has not opened it (KVCACHED_IPC_NAME?). Nothing is lent", e.cfg.Segment, l.Written)
	}
	e.lost = limitNote{}
	return nil
}

// follow takes a look at the segment into the note; mu is held. fromFile reads
// the note of another sidecar even where our own still fits.
func (e *kvcached) follow(info segmentInfo, fromFile bool) {
	n := e.note
	if fromFile || n.Inode != info.inode || size.Bytes(info.limit) != n.Written {
		if f := readNote(e.cfg.Segment); f.Inode == info.inode {
			n = f
		}
	}
	next := n.follow(info)
	if next.Inode != e.note.Inode || next.Written != e.note.Written {
		e.disobeyed, e.lowest = false, math.MaxInt64
	}
	if next.Inode != e.note.Inode {
		e.pages, e.idleUsed = pageIDs{}, 0
	}
	e.note, e.last = next, info
	e.pages.see(info)
	if e.note.Written == 0 || e.orderedAt.IsZero() || e.settling() {
		e.lowest = math.MaxInt64
		return
	}
	e.disobeyed = e.disobeyed || info.held() > max(e.note.Written, e.lowest)
	e.lowest = min(e.lowest, info.held())
}

// settling says that the engine need not have seen the last order yet; mu is held.
func (e *kvcached) settling() bool {
	return !e.orderedAt.IsZero() && e.waited != e.note.Epoch && e.now().Sub(e.orderedAt) < kvcachedSettle
}

// sample turns the segment into bytes; mu is held.
func (e *kvcached) sample(info segmentInfo) Sample {
	srv := e.served
	s := Sample{
		At: e.now(), PID: e.cfg.PID, Held: info.held(), Needed: size.Bytes(info.used), Bound: size.Bytes(info.limit), Pool: e.note.Initial, PoolTokens: srv.tokens,
		UsageFrac: min(1, float64(info.used)/float64(e.note.Initial)), Running: srv.running, Waiting: srv.waiting, Preemptions: srv.preemptions,
		BytesPerToken: e.cfg.BytesPerToken, BlockTokens: srv.blockTokens, MaxModelLen: srv.maxModelLen,
	}
	if n := e.note; n.Written == s.Bound {
		s.BoundEpoch = n.Epoch
		if n.Written < n.Before && e.settling() {
			// It may still map up to the limit before. No order has the epoch 1: by 0 the
			// caller would take it for an engine that restarted.
			s.Bound, s.BoundEpoch = n.Before, max(1, n.Prior)
		}
	}
	// Cached prefixes are in use by kvcached's count. With no request in the server
	// nothing else can be; more than there was then is a request's.
	if srv.running+srv.waiting == 0 {
		s.Needed = size.Bytes(max(0, info.used-e.idleUsed))
	}
	s.Evictable = s.Held - s.Needed
	if s.PrefixQueries, s.PrefixHits = srv.prefixQueries, srv.prefixHits; s.PrefixQueries > 0 {
		s.Cached = s.Evictable // it does not say which of its bytes are prefixes
	}
	if s.BytesPerToken == 0 && srv.tokens > 0 {
		s.BytesPerToken = e.note.Largest / size.Bytes(srv.tokens)
	}
	if e.cfg.BlockTokens > 0 {
		s.BlockTokens = e.cfg.BlockTokens
	}
	if e.disobeyed {
		s.Note = e.disobedience(info.held())
	}
	return s
}

func (e *kvcached) disobedience(held size.Bytes) string {
	return fmt.Sprintf("kvcached does not keep to its limit: it holds %v and has grown above the %v that were set; KVCACHED_PAGE_PREALLOC_ENABLED=false switches the limit off", held, e.note.Written)
}

// checkMute finds a segment that nobody keeps: requests run, and nothing is mapped.
func (e *kvcached) checkMute(s Sample) error {
	if s.Running == 0 || s.Held > 0 {
		e.muteAt = time.Time{}
		return nil
	}
	if e.muteAt.IsZero() {
		e.muteAt = s.At
	}
	if s.At.Sub(e.muteAt) < kvcachedMute {
		return nil
	}
	return fmt.Errorf("engine %s: segment %s: nothing is mapped while the server runs %d requests; it belongs to another server or is left from one (KVCACHED_IPC_NAME?). Nothing is lent", e.name, e.cfg.Segment, s.Running)
}
