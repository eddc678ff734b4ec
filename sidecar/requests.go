package sidecar

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lull-project/lull/handover"
)

// verdict is the core's word on one request.
type verdict struct {
	forward    bool
	outcome    handover.Outcome
	retryAfter time.Duration
}

// request is one live request.
type request struct {
	id       handover.RequestID
	engine   handover.EngineID
	promise  *promise      // set in the gate before the request goes; its relay's own
	verdict  chan verdict  // one word, buffered
	parked   chan struct{} // has one once the core holds the request
	tokens   atomic.Int64  // content tokens so far
	events   atomic.Int64  // generation events so far, with text or without
	lastAt   atomic.Int64  // offset of the last content event
	arrived  handover.At   // when it was admitted to the table
	stepAt   atomic.Int64  // offset of the last generation event, 0 before the first
	reported int64         // loop only: tokens that the core knows of
	decided  atomic.Bool
	asked    handover.Arrived // what the core was told, where there is one
	tier     string
	from     mark // where the mean duty beside it begins
}

// requests is the table of live requests. Relays add to their own entry without
// a lock that the loop holds for long.
type requests struct {
	mu    sync.RWMutex
	byID  map[handover.RequestID]*request
	count atomic.Int64
}

func newRequests() *requests { return &requests{byID: map[handover.RequestID]*request{}} }

func (r *requests) add(id handover.RequestID, engine handover.EngineID, at handover.At) *request {
	req := &request{id: id, engine: engine, verdict: make(chan verdict, 1), parked: make(chan struct{}, 1), arrived: at}
	r.mu.Lock()
	r.byID[id] = req
	r.mu.Unlock()
	r.count.Add(1)
	return req
}

func (r *requests) get(id handover.RequestID) *request {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byID[id]
}

func (r *requests) remove(id handover.RequestID) {
	r.mu.Lock()
	_, known := r.byID[id]
	delete(r.byID, id)
	r.mu.Unlock()
	if known {
		r.count.Add(-1)
	}
}

// live is how many there are.
func (r *requests) live() int { return int(r.count.Load()) }

// resolve gives a request its verdict; the first word counts.
func (r *requests) resolve(id handover.RequestID, v verdict) {
	if req := r.get(id); req != nil && req.decided.CompareAndSwap(false, true) {
		req.verdict <- v
	}
}

// park notes that the core holds a request. Of one that moved to another engine it
// may say so again.
func (r *requests) park(id handover.RequestID) {
	if req := r.get(id); req != nil {
		select {
		case req.parked <- struct{}{}:
		default:
		}
	}
}

// untilParked waits within limit for the core's first word. If that is that it holds
// the request, the request may wait for long from then on: a loop that says nothing
// must not delay it so.
func (r *request) untilParked(ctx, limit context.Context, long time.Duration) (context.Context, context.CancelFunc) {
	select {
	case <-r.parked:
		return context.WithTimeout(ctx, long)
	case v := <-r.verdict:
		r.verdict <- v // it is buffered, and decided once
	case <-limit.Done():
	}
	return limit, func() {}
}

// held are the requests without a verdict.
func (r *requests) held() map[handover.RequestID]*request {
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := map[handover.RequestID]*request{}
	for id, req := range r.byID {
		if !req.decided.Load() {
			out[id] = req
		}
	}
	return out
}

// pressure is the highest of the streams that the server has, and how many of
// them decode under a TBT limit. One that is held waits for memory, not for the
// device's time; an answer that comes whole shows nothing until its end.
func (r *requests) pressure(at handover.At, prefill func(tokens int) time.Duration) (highest float64, decoding int) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, req := range r.byID {
		if !req.decided.Load() {
			continue // its promise may be being written
		}
		p := req.promise
		if p == nil || !p.stream {
			continue
		}
		last := handover.At(req.stepAt.Load())
		if last > 0 && p.TBT > 0 {
			decoding++
		}
		highest = max(highest, p.Pressure(p.promptTokens, at-req.arrived, prefill(p.promptTokens), at-last, last > 0))
	}
	return highest, decoding
}

// progress lists the requests whose token count rose since the last call.
func (r *requests) progress() []handover.Progress {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []handover.Progress
	for id, req := range r.byID {
		if n := max(req.tokens.Load(), req.events.Load()); n > req.reported {
			req.reported = n
			out = append(out, handover.Progress{ID: id, OutputTokens: int(n)})
		}
	}
	return out
}
