package sidecar

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
)

// residency measures an engine's bytes that cannot move: its process's bytes by
// the device's books, less its baseline and the KV that it holds. KV moves while
// one reads, so a figure counts only when the engine says the same before and
// after.
type residency struct {
	now      func() time.Time
	books    books
	layout   handover.EngineConfig // by which its KV lies on its devices
	listener func() (int, error)   // who listens at the engine's address; nil where that is not this machine
	pid      int                   // from the config; 0 finds it
	last     time.Time

	seen   int          // found as the listener
	absent int          // the process that was looked for last, where its GPU does not list it
	shown  atomic.Int64 // the last one used, for readers on other goroutines
}

// residencyEvery spaces the measurements: walking a process tree takes a
// millisecond or more for a server with many threads.
const residencyEvery = time.Second

// resident is 0 when this reading cannot say.
func (r *residency) resident(ctx context.Context, e engine.Engine, before engine.Sample) size.Bytes {
	if now := r.now(); now.Sub(r.last) < residencyEvery {
		return 0
	} else {
		r.last = now
	}
	pid := r.find(before)
	r.shown.Store(int64(pid))
	if pid == 0 {
		return before.Resident
	}
	r.absent = 0
	shown, err := r.books.trees(ctx, pid)
	if err != nil {
		return before.Resident
	}
	if !r.books.beyond() && slices.Max(shown) == 0 {
		r.absent = pid
	}
	after, err := e.Observe(ctx)
	if err != nil || after.Held != before.Held {
		return 0
	}
	return r.beside(shown, before)
}

// beside is what stands beside the KV on the fullest of the engine's devices: what does
// not move counts alike on all of them.
func (r *residency) beside(shown []size.Bytes, s engine.Sample) (most size.Bytes) {
	for i, b := range shown {
		held := s.Held
		if i < len(r.layout.Devices) {
			held = r.layout.On(r.layout.Devices[i], held)
		}
		if r.books.beyond() {
			b -= s.Baseline
		}
		most = max(most, b-held)
	}
	return most
}

// find prefers the config's word, then the engine's, then the listener of its
// address; the last is kept until the engine goes down.
func (r *residency) find(s engine.Sample) int {
	if r.pid != 0 {
		return r.pid
	}
	if s.PID != 0 {
		return s.PID
	}
	if r.seen == 0 && r.listener != nil {
		r.seen, _ = r.listener() // 0 when nobody can be seen there
	}
	return r.seen
}

// forget makes the next reading find the process and measure anew.
func (r *residency) forget() { r.seen, r.last = 0, time.Time{} }

// known is the process that was measured last; 0 when none could be found.
func (r *residency) known() int { return int(r.shown.Load()) }
