package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lull-project/lull/size"
)

const (
	// vllmLease is how long the engine keeps a bound without a sign of life.
	// Shorter gives memory back to an orphaned engine sooner; longer rides out a
	// restart of the sidecar.
	vllmLease = 10 * time.Second
	// vllmBeat is the longest that Observe lets pass without a sign of life.
	vllmBeat = vllmLease / 10
	// vllmQuiet is how long the engine's beat, ten a second, may stand still
	// before its lock is looked at.
	vllmQuiet = 300 * time.Millisecond
)

// lullVLLM is a vLLM with the plugin lull-vllm: its KV cache is told by a page of
// shared memory that it writes every step, and kept under a bound.
//
// Observe reads the page without a system call, but for the rare sign of life.
// Shortages starts the one goroutine of this package; Close waits for it.
type lullVLLM struct {
	cfg  Config
	base string // path of the page without its suffix
	caps Capabilities

	mu    sync.Mutex
	page  *mappedPage
	order *boundPage
	// beats and movedAt: the engine's beat, and when it last moved.
	beats   uint64
	movedAt time.Time
	beatAt  time.Time // our own last sign of life
	// rang is what Shortages returned, bell who fills it.
	rang   chan struct{}
	bell   *bell
	closed bool
}

var _ Bounder = (*lullVLLM)(nil)

// openLullVLLM opens a vLLM with Lull's plugin. The engine need not be up.
func openLullVLLM(c Config) (Engine, error) {
	if c.Page == "" {
		c.Page = fmt.Sprintf("/dev/shm/lull-%d/vllm.page", os.Getuid())
	}
	base, ok := strings.CutSuffix(c.Page, ".page")
	if !ok || !filepath.IsAbs(c.Page) {
		return nil, fmt.Errorf("engine %s: page: got %q, want an absolute path that ends in .page", c.Name, c.Page)
	}
	e := &lullVLLM{cfg: c, base: base, caps: Capabilities{
		Kind: KindLullVLLM, ObservePhysical: true, ObserveLogical: true, Bound: true, Reclaim: true, Preempts: true,
	}}
	// A page that is there already says whether this engine takes a bound.
	if words, err := e.words(); err == nil && words[wordMode] == modeTelemetry {
		e.caps.Bound, e.caps.Reclaim, e.caps.Static = false, false, true
	}
	return e, nil
}

// Name is the name in the config.
func (e *lullVLLM) Name() string { return e.cfg.Name }

// Capabilities: a plugin that found no way to set a bound says so on its page
// when it is up before Open; later, SetBound says it.
func (e *lullVLLM) Capabilities() Capabilities { return e.caps }

// Observe reads the page and now and then shows the engine that we live.
func (e *lullVLLM) Observe(context.Context) (Sample, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.listen()
	words, err := e.words()
	if err != nil {
		return Sample{}, fmt.Errorf("engine %s: %w", e.cfg.Name, err)
	}
	if now := e.cfg.Now(); now.Sub(e.beatAt) >= vllmBeat && words[wordMode] != modeTelemetry {
		if err := e.sign(words[wordInstance]); err != nil {
			return Sample{}, fmt.Errorf("engine %s: sign of life: %w", e.cfg.Name, err)
		}
		e.beatAt = now
	}
	return e.sample(words), nil
}

// words returns the page of a living engine; mu is held, or e is not shared yet.
func (e *lullVLLM) words() ([]uint64, error) {
	now := e.cfg.Now()
	if e.page != nil && now.Sub(e.movedAt) > vllmQuiet && !e.page.current(e.cfg.Page) {
		e.forget()
	}
	if e.page == nil {
		page, err := mapPage(e.cfg.Page)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w: no page %s; the engine counts as down", ErrUnreachable, e.cfg.Page)
		}
		if err != nil {
			return nil, err
		}
		e.page, e.movedAt, e.beats = page, now, 0
	}
	words, err := e.page.read(telemetryMagic, telemetryWords)
	if err != nil {
		e.forget() // a successor may have replaced it by the next call
		return nil, fmt.Errorf("%s: %w", e.cfg.Page, err)
	}
	if words[wordBeats] != e.beats {
		e.beats, e.movedAt = words[wordBeats], now
	}
	return words, e.alive(now)
}

// alive: the engine holds its lock file as long as it lives, in whatever
// container; only an engine whose beat stands still is asked.
func (e *lullVLLM) alive(now time.Time) error {
	quiet := now.Sub(e.movedAt)
	if quiet <= vllmQuiet {
		return nil
	}
	f, err := os.Open(e.base + ".lock")
	if err == nil {
		defer f.Close()
		err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: nobody holds %s.lock; the engine counts as down", ErrUnreachable, e.base)
	}
	if quiet > e.cfg.Timeout {
		return fmt.Errorf("%w: no beat on %s for %v; the engine counts as down", ErrUnreachable, e.cfg.Page, quiet.Round(time.Millisecond))
	}
	return nil
}

// sample turns the page into bytes of the device. Ranks that share the host's
// memory add up; on GPUs each rank has a device of its own.
func (e *lullVLLM) sample(w []uint64) Sample {
	block := size.Bytes(w[wordBlockBytes]) * e.devices(w)
	held := w[wordBlocksMapped]
	if w[wordConfirmedEpoch] != w[wordRequestedEpoch] {
		// Until the order is confirmed the engine may still touch every block that
		// it has, and those on their way out are not gone.
		held = max(held, w[wordPoolBlocks]-w[wordBlocksWithdrawn]+w[wordBlocksPending])
	}
	s := Sample{
		At: e.cfg.Now(), PID: int(w[wordEnginePID]),
		Held: size.Bytes(held) * block, Needed: size.Bytes(w[wordBlocksUsed]) * block,
		Bound: size.Bytes(w[wordBoundBytes]) * e.devices(w), BoundEpoch: w[wordRequestedEpoch],
		Pool: size.Bytes(w[wordPoolBlocks]) * block, Baseline: size.Bytes(w[wordBaselineBytes]),
		Short:   size.Bytes(w[wordShortBytes]) * e.devices(w),
		Running: int(w[wordRunning]), Waiting: int(w[wordWaiting]), Preemptions: w[wordPreemptions],
		BlockTokens: int(w[wordBlockTokens]), MaxModelLen: int(w[wordMaxModelLen]),
	}
	s.Needed = min(s.Needed, s.Held)
	s.Evictable = s.Held - s.Needed
	s.Cached = min(size.Bytes(w[wordBlocksCached])*block, s.Evictable)
	s.PrefixQueries, s.PrefixHits = w[wordPrefixQueries], w[wordPrefixHits]
	if w[wordPoolBlocks] > 0 {
		s.UsageFrac = float64(w[wordBlocksUsed]) / float64(w[wordPoolBlocks])
	}
	if w[wordBlockTokens] > 0 {
		s.BytesPerToken = block / size.Bytes(w[wordBlockTokens])
	}
	if w[wordFlags]&flagLeaseRaised != 0 {
		s.BoundEpoch = 0 // the bound is the pool again, by nobody's order
	}
	if w[wordMode] == modeTelemetry {
		s.Held, s.Evictable, s.Cached, s.Bound = s.Pool, 0, 0, s.Pool
	}
	return s
}

func (e *lullVLLM) devices(w []uint64) size.Bytes {
	if w[wordMode] == modeHostPages {
		return size.Bytes(max(1, w[wordRanks]))
	}
	return 1
}

// forget drops the mapping and the order page: the engine ended or was replaced.
func (e *lullVLLM) forget() {
	if e.page != nil {
		e.page.close()
		e.page = nil
	}
	if e.order != nil {
		e.order.close()
		e.order = nil
	}
}

// Close gives the mappings back and ends the goroutine of Shortages.
func (e *lullVLLM) Close() error {
	e.mu.Lock()
	e.forget()
	b := e.bell
	e.bell, e.closed = nil, true
	e.mu.Unlock()
	if b == nil {
		return nil
	}
	return b.close()
}
