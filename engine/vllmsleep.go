package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/lull-project/lull/endpoint"
	"github.com/lull-project/lull/size"
)

// poolMoves is the longest that a whole pool may take to go or to come back.
// Shorter takes a large one for stuck, longer keeps a request waiting for a
// server that hangs.
const poolMoves = time.Minute

// poolUndone is how long an undone release may take before it is left to the next
// reading: a stop waits for it.
const poolUndone = 5 * time.Second

// poolRests is how long a server that did not let its pool go is not asked again:
// each try holds up what comes meanwhile by some milliseconds, and a device that
// cannot do it never will.
const poolRests = 30 * time.Second

// wakeUp maps the pool again and, since all is there then, goes on with requests.
const wakeUp = "/wake_up?tags=kv_cache"

// vllmSleep is a stock vLLM with its sleep mode switched on (--enable-sleep-mode,
// VLLM_SERVER_DEV_MODE=1): its KV pool can go as a whole while no request is
// there, and come back. What it cached is lost by that; weights stay. A bound of
// 0 lets the pool go, any other has it all.
type vllmSleep struct {
	*vllm
	slow *client // for what takes as long as the pool is large

	moving sync.Mutex // held while the pool goes or comes back
	mu     sync.Mutex
	epoch  uint64 // of the last order that it obeyed
	let    bool   // that order let the pool go
	kept   error  // why the pool did not go, until then
	then   time.Time
	frozen bool // paused by us and neither released nor resumed: undone as soon as it answers
	asked  bool // whether it was paused when it was first read
	paused bool
}

var _ Bounder = (*vllmSleep)(nil)

func newVLLMSleep(c Config) *vllmSleep {
	patient := c
	patient.Timeout = max(c.Timeout, poolMoves)
	return &vllmSleep{vllm: newVLLM(c), slow: newClient(patient)}
}

// Capabilities: the whole pool or none of it.
func (e *vllmSleep) Capabilities() Capabilities {
	return Capabilities{Kind: KindVLLMSleep, ObserveLogical: true, Bound: true, Reclaim: true, Whole: true, Preempts: true}
}

// Close drops idle connections.
func (e *vllmSleep) Close() error {
	_ = e.slow.Close()
	return e.vllm.Close()
}

// Observe reads the pool's logical use and whether it is there. A pause that could
// not be undone is undone first. While the pool moves it only reads: what it sees
// then may be of before, and says nothing about an order.
func (e *vllmSleep) Observe(ctx context.Context) (Sample, error) {
	still := e.moving.TryLock()
	if still {
		defer e.moving.Unlock()
		if err := e.thaw(ctx, e.client); err != nil {
			return Sample{}, err
		}
	}
	s, err := e.look(ctx)
	if !still {
		e.mu.Lock()
		s.BoundEpoch = e.epoch
		e.mu.Unlock()
	}
	return s, err
}

// look is Observe without a care for who moves the pool.
func (e *vllmSleep) look(ctx context.Context) (Sample, error) {
	s, state, err := e.state(ctx)
	if err != nil {
		return Sample{}, err
	}
	e.mu.Lock()
	if e.let == (state == poolGone) {
		s.BoundEpoch = e.epoch // else it restarted, or somebody else moved it
	}
	e.mu.Unlock()
	switch state {
	case poolGone:
		s.Held, s.Needed, s.Bound, s.UsageFrac = 0, 0, 0, 0
	case allAsleep:
		s.Note = "it was put to sleep by somebody else (POST /sleep): Lull leaves it so, counts its pool as held and lends nothing of it"
	case poolThere:
		if s.Running+s.Waiting == 0 {
			s.Evictable = s.Held - s.Needed // a pool without requests goes whole
		}
		s.Note = e.pausedNote(ctx)
	}
	return s, nil
}

// state reads the server, and what of it is there.
func (e *vllmSleep) state(ctx context.Context) (Sample, sleepState, error) {
	s, f, err := e.read(ctx, vllmSleepState)
	if err != nil {
		return Sample{}, 0, err
	}
	state, err := sleepStateOf(f)
	if err != nil {
		return Sample{}, 0, fmt.Errorf("engine %s: %s/metrics: %w", e.name, e.base, err)
	}
	return s, state, nil
}

// pausedNote asks once whether the server stands still with its pool there: a
// sidecar that was killed in the middle of a release leaves it so, and so may its
// operator, whose pause is not Lull's to end.
func (e *vllmSleep) pausedNote(ctx context.Context) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.asked {
		var got struct {
			Paused bool `json:"is_paused"`
		}
		if err := e.getJSON(ctx, "/is_paused", &got); errors.Is(err, ErrUnreachable) {
			return ""
		}
		e.asked, e.paused = true, got.Paused
	}
	if e.paused {
		return "it was paused when Lull first read it, by somebody else or by a sidecar that was killed: requests wait until POST /resume"
	}
	return ""
}

// SetBound lets the pool go for a bound of 0 and has it back for any other. A pool
// that does not go (a request came meanwhile, or this vLLM cannot) stays, and the
// server goes on: the error says which.
func (e *vllmSleep) SetBound(ctx context.Context, epoch uint64, b size.Bytes) (Sample, error) {
	e.moving.Lock()
	defer e.moving.Unlock()
	e.mu.Lock()
	stale := epoch < e.epoch
	e.mu.Unlock()
	if stale {
		return Sample{}, fmt.Errorf("engine %s: set bound epoch=%d to %v: %w; the engine keeps its bound", e.name, epoch, b, ErrStaleEpoch)
	}
	move := e.restore
	if b == 0 {
		move = e.release
	}
	if err := move(ctx); err != nil {
		return Sample{}, fmt.Errorf("set bound epoch=%d to %v: %w", epoch, b, err)
	}
	e.mu.Lock()
	e.epoch, e.let = epoch, b == 0
	e.paused = false // it moved by our word since
	e.mu.Unlock()
	s, err := e.look(ctx)
	if err != nil {
		return Sample{}, fmt.Errorf("set bound epoch=%d to %v: %w", epoch, b, err)
	}
	if gone := s.Held == 0; gone != (b == 0) {
		err = fmt.Errorf("engine %s: set bound epoch=%d to %v: it agreed, and then showed %v held; its pool counts as held", e.name, epoch, b, s.Held)
		if b == 0 {
			e.freeze(true)
			err = errors.Join(err, e.undo(ctx))
		}
		return Sample{}, err
	}
	return s, nil
}

// release lets the pool go, unless the server has lately refused that.
func (e *vllmSleep) release(ctx context.Context) error {
	e.mu.Lock()
	kept, rests := e.kept, e.now().Before(e.then)
	e.mu.Unlock()
	if rests {
		return fmt.Errorf("not tried again within %v: %w", poolRests, kept)
	}
	err := e.letGo(ctx)
	if err != nil {
		e.mu.Lock()
		e.kept, e.then = err, e.now().Add(poolRests)
		e.mu.Unlock()
	}
	return err
}

// letGo pauses, lets the pool go, and undoes the pause where it does not. vLLM
// refuses while it has a request (v1/engine/core.py), so a request that comes in
// between loses nothing but these milliseconds.
func (e *vllmSleep) letGo(ctx context.Context) error {
	s, state, err := e.state(ctx)
	switch {
	case err != nil:
		return err
	case state == poolGone:
		return nil
	case state == allAsleep:
		return fmt.Errorf("engine %s: its pool was not released: somebody else put it to sleep", e.name)
	case s.Running+s.Waiting > 0:
		return fmt.Errorf("engine %s: its pool was not released: got %d running and %d waiting requests, want none", e.name, s.Running, s.Waiting)
	}
	e.freeze(true)
	// keep: whatever comes meanwhile is queued, nothing is aborted.
	_, err = e.slow.do(ctx, http.MethodPost, "/pause?mode=keep", nil)
	if err == nil {
		if _, err = e.slow.do(ctx, http.MethodPost, "/release_kv_cache_memory", nil); err == nil {
			e.freeze(false) // it is paused for good reason now, and wakes by an order
			return nil
		}
	}
	if statusOf(err) == http.StatusNotFound {
		err = fmt.Errorf("%w; start vLLM with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode (a release of 2026-09 or later)", err)
	}
	if undone := e.undo(ctx); undone != nil {
		return fmt.Errorf("its pool was not released: %w; and the pause was not undone: %w; tried again at each reading", err, undone)
	}
	return fmt.Errorf("its pool was not released, the server goes on with it: %w", err)
}

// restore has the pool back; vLLM goes on with its requests by itself then.
func (e *vllmSleep) restore(ctx context.Context) error {
	var got struct {
		Status string `json:"status"`
	}
	if _, state, err := e.state(ctx); err != nil || state != poolGone {
		return err // none where it is there, or somebody else's to wake
	}
	a, err := e.slow.do(ctx, http.MethodPost, wakeUp, nil)
	if err != nil {
		return fmt.Errorf("its pool did not come back: %w", err)
	}
	if err := e.decode(wakeUp, a.body, &got); err != nil {
		return err
	}
	if got.Status != "awake" {
		return fmt.Errorf("engine %s: %s%s: its pool did not come back: got status %q, want awake", e.name, e.base, wakeUp, got.Status)
	}
	return nil
}

// undo is thaw for a caller that may have given up: the requests must go on all
// the same.
func (e *vllmSleep) undo(ctx context.Context) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), poolUndone)
	defer stop()
	return e.thaw(ctx, e.slow)
}

// thaw undoes a pause of ours that led to nothing. Waking also has back what may
// have gone of the pool, and a server that is awake goes on; without that route
// nothing can have gone. A server that is down has forgotten the pause.
func (e *vllmSleep) thaw(ctx context.Context, by *client) error {
	e.mu.Lock()
	frozen := e.frozen
	e.mu.Unlock()
	if !frozen {
		return nil
	}
	_, err := by.do(ctx, http.MethodPost, wakeUp, nil)
	if statusOf(err) == http.StatusNotFound {
		_, err = by.do(ctx, http.MethodPost, "/resume", nil)
	}
	if err != nil && !endpoint.NobodyListens(err) {
		return fmt.Errorf("it is paused by Lull and was not resumed: %w", err)
	}
	e.freeze(false)
	return nil
}

func (e *vllmSleep) freeze(on bool) {
	e.mu.Lock()
	e.frozen = on
	e.mu.Unlock()
}
