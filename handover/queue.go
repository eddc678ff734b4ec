package handover

import (
	"slices"
	"time"

	"github.com/lull-project/lull/kvbudget"
)

// request is one that arrived and has not finished.
type request struct {
	id      RequestID
	engine  *engine
	live    *kvbudget.Active
	seq     uint64
	place   int // in engine.requests
	arrived At
	slack   time.Duration
	atEnd   Bytes

	held  bool
	dueAt At // when a held request is answered unconfirmed
}

// answerArrival answers the request that arrived in this Step, after the
// policy has ordered what it needs.
func (h *Handover) answerArrival() {
	r := h.arrival
	h.arrival = nil
	if r != nil && !r.engine.down && r.engine.needsRoom() > r.engine.usable() {
		h.hurry(r.engine)
	}
	switch {
	case r == nil:
	case !h.harmful(r.engine):
		h.emit(Release{ID: r.id, Outcome: OutcomeForwarded})
	case r.slack == 0 && !h.away(r.engine): // it cannot wait
		h.goUnconfirmed(r)
	case h.full(r.engine):
		h.refuseFull(r)
	default:
		h.hold(r)
	}
}

// harmful says that forwarding a request now, counted already, could do harm
// that waiting avoids. An arena engine that lacks memory aborts. An engine that
// preempts throws running requests' work away when their growth and this need
// exceed its bound; waiting helps when an order is owed that will take longer
// than the engine itself takes to allocate. One that fails requests without its
// pool fails this one. Any other engine queues by itself.
func (h *Handover) harmful(e *engine) bool {
	if h.away(e) {
		return true
	}
	if !h.holds(e) || e.covers(e.needsRoom()) {
		return false
	}
	return e.cfg.Fence == FenceArena || h.owed(e)
}

// holds says that requests of the engine are held at all.
func (h *Handover) holds(e *engine) bool {
	if h.cfg.Hold == HoldNever || h.cfg.Mode == ModeStatic || e.down {
		return false
	}
	switch e.cfg.Fence {
	case FenceArena:
		return true
	case FenceHard:
		return e.cfg.Preempts && h.tail.mean > e.delay.value()
	}
	return false
}

// full says that as many requests of the engine are held as may be. Each engine has a
// queue of its own: those that wait for a pool that loads for a minute keep no place
// from those that wait milliseconds for a handover.
func (h *Handover) full(e *engine) bool { return e.parked >= h.cfg.QueueLimit }

// refuseFull answers a request that would have to wait in a full queue.
func (h *Handover) refuseFull(r *request) {
	h.emit(Reject{ID: r.id, Outcome: OutcomeRejectedCapacity, RetryAfter: h.retryAfter()})
	h.forget(r)
}

// owed says that a shrink on one of the engine's devices is not confirmed.
func (h *Handover) owed(e *engine) bool {
	for _, d := range e.devices {
		if d.coming() > 0 {
			return true
		}
	}
	return false
}

// hold parks a request until its need is covered; no longer than its slack,
// and while an order is owed no longer than the order's deadline. One that would
// fail waits as long as its engine's config says.
func (h *Handover) hold(r *request) {
	wait := r.slack
	if h.away(r.engine) {
		wait = r.engine.cfg.Await
	} else if h.owed(r.engine) {
		wait = min(wait, h.cfg.AckWithin)
	}
	r.held, r.dueAt = true, h.now+wait
	r.engine.pred.Apart(r.live)
	r.engine.queued += r.live.Held()
	r.engine.parked++
	i := len(h.queue)
	for i > 0 && later(h.queue[i-1], r) {
		i--
	}
	h.queue = append(h.queue, nil)
	copy(h.queue[i+1:], h.queue[i:])
	h.queue[i] = r
	h.emit(Hold{ID: r.id, Stage: r.engine.tightestID()})
}

// later says that a has more slack left than b.
func later(a, b *request) bool {
	x, y := a.arrived+a.slack, b.arrived+b.slack
	if x != y {
		return x > y
	}
	return a.seq > b.seq
}

func (h *Handover) unqueue(r *request) {
	r.held = false
	r.engine.queued -= r.live.Held()
	r.engine.parked--
	r.engine.pred.Share(r.live)
	for i, x := range h.queue {
		if x == r {
			h.queue = append(h.queue[:i], h.queue[i+1:]...)
			return
		}
	}
}

// serveQueue lets held requests go in the order of their slack: those whose
// need the confirmed bound covers, and those that are due. The first of an
// engine that is not covered keeps the later ones waiting, so that small
// requests do not starve a large one.
func (h *Handover) serveQueue() {
	if len(h.queue) == 0 {
		return
	}
	var stuck []*engine
	for _, r := range slices.Clone(h.queue) {
		e := r.engine
		switch {
		case !slices.Contains(stuck, e) && e.covers(h.needWith(r)):
			h.unqueue(r)
			h.emit(Release{ID: r.id, Outcome: OutcomeHeldForwarded})
		case h.now >= r.dueAt, h.hopeless(e):
			h.goUnconfirmed(r)
		default:
			stuck = append(stuck, e)
		}
	}
}

// needWith is the need of its engine with a held request and without the others that
// are held.
func (h *Handover) needWith(r *request) Bytes {
	e := r.engine
	need := e.needsRoom() - e.queued + e.pred.WouldAdd(r.live)
	if a := h.arrival; a != nil && a.engine == e {
		need -= e.pred.Adds(a.live)
	}
	return need
}

// goUnconfirmed answers a request whose memory did not come in time.
func (h *Handover) goUnconfirmed(r *request) {
	if h.cfg.Owed == OwedRefuse {
		h.forget(r)
		h.emit(Reject{ID: r.id, Outcome: OutcomeRejectedDeadline, RetryAfter: h.retryAfter()})
		return
	}
	if r.held {
		h.unqueue(r)
	}
	h.emit(Release{ID: r.id, Outcome: OutcomeForwardedUnconfirmed})
}

// retryAfter is when memory is likely there: what few handovers exceed, in
// whole seconds as the header has them, at least one.
func (h *Handover) retryAfter() time.Duration {
	return max(time.Second, (h.tail.high() + time.Second - 1).Truncate(time.Second))
}
