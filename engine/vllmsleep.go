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

// poolUndone is how long an undone release may take before it is left to the next
// reading: a stop waits for it.
const poolUndone = 5 * time.Second

// wakeUp maps the pool again and, since all is there then, goes on with requests.
const wakeUp = "/wake_up?tags=kv_cache"

// vllmSleep is a stock vLLM with its sleep mode switched on (--enable-sleep-mode,
// VLLM_SERVER_DEV_MODE=1): its KV pool can go as a whole while no request is
// there, and come back. What it cached is lost by that; weights stay.
type vllmSleep struct {
	*vllm
	slow *client // for what takes as long as the pool is large
	pool wholePool

	mu     sync.Mutex
	frozen bool // paused by us and neither released nor resumed: undone as soon as it answers
	asked  bool // whether it was paused when it was first read
	paused bool
}

var _ Bounder = (*vllmSleep)(nil)

func newVLLMSleep(c Config) *vllmSleep {
	patient := c
	patient.Timeout = max(c.Timeout, poolMoves)
	return &vllmSleep{vllm: newVLLM(c), slow: newClient(patient), pool: wholePool{now: c.Now}}
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
// not be undone is undone first.
func (e *vllmSleep) Observe(ctx context.Context) (Sample, error) { return e.pool.observe(ctx, e) }

// SetBound lets the pool go for a bound of 0 and has it back for any other. A pool
// that does not go (a request came meanwhile, or this vLLM cannot) stays, and the
// server goes on: the error says which.
func (e *vllmSleep) SetBound(ctx context.Context, epoch uint64, b size.Bytes) (Sample, error) {
	return e.pool.order(ctx, e, epoch, b)
}

func (e *vllmSleep) tidy(ctx context.Context) error { return e.thaw(ctx, e.client) }

func (e *vllmSleep) look(ctx context.Context) (Sample, error) {
	s, state, err := e.state(ctx)
	if err != nil {
		return Sample{}, err
	}
	s.BoundEpoch = e.pool.shown(state == poolGone)
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

// pausedNote says whether the server stands still with its pool there: a sidecar
// that was killed in the middle of a release leaves it so, and so may its operator,
// whose pause is not Lull's to end. It is asked once, and not while Lull itself
// pauses it.
func (e *vllmSleep) pausedNote(ctx context.Context) string {
	e.mu.Lock()
	asked, paused := e.asked || e.frozen, e.paused
	e.mu.Unlock()
	if !asked {
		var got struct {
			Paused bool `json:"is_paused"`
		}
		if err := e.getJSON(ctx, "/is_paused", &got); errors.Is(err, ErrUnreachable) {
			return ""
		}
		e.mu.Lock()
		if !e.asked && !e.frozen {
			e.asked, e.paused = true, got.Paused
		}
		paused = e.paused
		e.mu.Unlock()
	}
	if paused {
		return "it was paused when Lull first read it, by somebody else or by a sidecar that was killed: requests wait until POST /resume"
	}
	return ""
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
			e.moved() // it is paused for good reason now, and wakes by an order
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
	e.moved()
	return nil
}

// undo is thaw, of a server that is surely to go on, for a caller that may have
// given up: the requests must go on all the same.
func (e *vllmSleep) undo(ctx context.Context) error {
	e.freeze(true)
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
	e.moved()
	return nil
}

func (e *vllmSleep) freeze(on bool) {
	e.mu.Lock()
	e.frozen = on
	e.mu.Unlock()
}

// moved says that the server stands still, or goes on, by Lull's word.
func (e *vllmSleep) moved() {
	e.mu.Lock()
	e.frozen, e.paused = false, false
	e.mu.Unlock()
}
