package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"

	"github.com/lull-project/lull/size"
)

// emulated is `lull emulate`: an engine whose KV pages are real memory under a
// bound that it keeps and confirms.
type emulated struct {
	*client
	cfg Config

	mu   sync.Mutex
	last Sample // the latest Observe, for what SetBound's short answer leaves out
}

var _ Bounder = (*emulated)(nil)

func newEmulator(c Config) *emulated { return &emulated{client: newClient(c), cfg: c} }

// Capabilities: everything.
func (e *emulated) Capabilities() Capabilities {
	return Capabilities{Kind: KindEmulator, ObservePhysical: true, ObserveLogical: true, Bound: true, Reclaim: true, Preempts: true}
}

// emulatorState is GET /lull/state.
type emulatorState struct {
	PID           int    `json:"pid"`
	Baseline      int64  `json:"baseline_bytes"`
	Resident      int64  `json:"resident_bytes"`
	Pool          int64  `json:"pool_bytes"`
	Bound         int64  `json:"bound_bytes"`
	BoundEpoch    uint64 `json:"bound_epoch"`
	Held          int64  `json:"held_bytes"`
	Needed        int64  `json:"needed_bytes"`
	Short         int64  `json:"short_bytes"`
	Running       int    `json:"running"`
	Waiting       int    `json:"waiting"`
	Preemptions   uint64 `json:"preemptions"`
	BytesPerToken int64  `json:"kv_bytes_per_token"`
	BlockTokens   int    `json:"block_tokens"`
	MaxModelLen   int    `json:"max_model_len"`
}

// Observe reads the emulator's own books.
func (e *emulated) Observe(ctx context.Context) (Sample, error) {
	var st emulatorState
	if err := e.getJSON(ctx, "/lull/state", &st); err != nil {
		return Sample{}, err
	}
	if st.PID <= 0 || st.Pool <= 0 || st.Held < 0 || st.Needed < 0 || st.Bound < 0 {
		return Sample{}, fmt.Errorf("engine %s: %s/lull/state: got pid %d, pool %v, bound %v, held %v, needed %v, want a pid and a pool above 0 and no negative bytes",
			e.name, e.base, st.PID, size.Bytes(st.Pool), size.Bytes(st.Bound), size.Bytes(st.Held), size.Bytes(st.Needed))
	}
	s := Sample{
		At: e.now(), PID: st.PID, Held: size.Bytes(st.Held), Needed: size.Bytes(st.Needed), Evictable: size.Bytes(max(st.Held-st.Needed, 0)),
		Bound: size.Bytes(st.Bound), BoundEpoch: st.BoundEpoch, Pool: size.Bytes(st.Pool),
		Resident: size.Bytes(st.Resident), Baseline: size.Bytes(st.Baseline), Short: size.Bytes(st.Short),
		UsageFrac: float64(st.Needed) / float64(st.Pool), Running: st.Running, Waiting: st.Waiting, Preemptions: st.Preemptions,
		BytesPerToken: size.Bytes(st.BytesPerToken), BlockTokens: st.BlockTokens, MaxModelLen: st.MaxModelLen,
	}
	e.mu.Lock()
	e.last = s
	e.mu.Unlock()
	return s, nil
}

// boundOrder and boundAnswer are PUT /lull/kv_bound.
type boundOrder struct {
	Epoch uint64 `json:"epoch"`
	Bytes int64  `json:"bytes"`
}

type boundAnswer struct {
	Epoch uint64 `json:"epoch"`
	Bound *int64 `json:"bound_bytes"`
	Held  *int64 `json:"held_bytes"`
}

// SetBound orders a bound. The answer carries bound, epoch and held; the rest of
// the Sample is as the latest Observe saw it.
func (e *emulated) SetBound(ctx context.Context, epoch uint64, b size.Bytes) (Sample, error) {
	body, err := json.Marshal(boundOrder{epoch, int64(b)})
	if err != nil {
		return Sample{}, fmt.Errorf("engine %s: set bound: %w", e.name, err)
	}
	const path = "/lull/kv_bound"
	a, err := e.do(ctx, http.MethodPut, path, body)
	if statusOf(err) == http.StatusConflict {
		return Sample{}, fmt.Errorf("engine %s: set bound epoch=%d to %v: %w; the engine keeps its bound: %w", e.name, epoch, b, ErrStaleEpoch, err)
	}
	if err != nil {
		return Sample{}, fmt.Errorf("set bound epoch=%d to %v: %w", epoch, b, err)
	}
	var got boundAnswer
	if err := e.decode(path, a.body, &got); err != nil {
		return Sample{}, err
	}
	if got.Epoch != epoch || got.Bound == nil || got.Held == nil || *got.Held < 0 {
		return Sample{}, fmt.Errorf("engine %s: set bound epoch=%d to %v: got %s, want the same epoch with bound_bytes and held_bytes", e.name, epoch, b, start(a.body))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.last
	s.At, s.Bound, s.BoundEpoch, s.Held = e.now(), size.Bytes(*got.Bound), got.Epoch, size.Bytes(*got.Held)
	s.Needed = min(s.Needed, s.Held)
	s.Evictable = s.Held - s.Needed
	e.last = s
	return s, nil
}
