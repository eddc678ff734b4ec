package handover

import "github.com/lull-project/lull/kvbudget"

// onArrived counts a request's need; answerArrival answers it after deciding.
// IDs are unique while live: a second arrival of one is dropped. A request for
// an unknown engine is none of ours and goes.
func (h *Handover) onArrived(e Arrived) {
	if h.requests[e.ID] != nil {
		return
	}
	eng := h.engine(e.Engine)
	if eng == nil {
		h.emit(Release{ID: e.ID, Outcome: OutcomeForwarded})
		return
	}
	h.seq++
	r := &request{id: e.ID, engine: eng, seq: h.seq, arrived: h.now, slack: max(0, e.Slack), place: len(eng.requests)}
	r.live = eng.pred.Arrive(h.now, kvbudget.Asked{
		Model: e.Model, Tier: e.Tier, PromptBytes: e.PromptBytes, ToolBytes: e.ToolBytes, Media: e.Media, PromptTokens: e.PromptTokens, Prefix: e.Prefix,
		MaxTokens: e.MaxTokens, Sequences: e.Sequences, Need: e.NeedBytes,
	})
	r.atEnd = eng.pred.AtEnd(r.live)
	eng.requests = append(eng.requests, r)
	eng.largest = max(eng.largest, r.atEnd)
	h.requests[e.ID] = r
	h.noteRise(r, e.Tier, e.Promised && e.Slack >= 0)
	if h.full(eng) && (h.away(eng) || r.slack > 0 && h.holds(eng) && !eng.covers(eng.needsRoom())) {
		h.refuseFull(r) // before anything is ordered for it
		return
	}
	h.arrival = r
}

// onProgressed takes generated tokens; requests it does not know, or holds, are
// passed over.
func (h *Handover) onProgressed(e Progressed) {
	for _, p := range e.Counts {
		if r := h.requests[p.ID]; r != nil && !r.held {
			r.engine.pred.Progress(h.now, r.live, p.OutputTokens)
		}
	}
}

// onFinished ends a request, wherever it was: a held one leaves the queue
// without an action, since its caller is gone.
func (h *Handover) onFinished(e Finished) {
	r := h.requests[e.ID]
	if r == nil {
		return
	}
	if r.held {
		h.forget(r)
		return
	}
	if e.Refused {
		r.engine.pred.Refuse(h.now, r.live)
	} else {
		r.engine.pred.Finish(h.now, r.live, kvbudget.Usage{PromptTokens: e.PromptTokens, CachedTokens: e.CachedTokens, OutputTokens: e.OutputTokens})
		r.engine.usage.add(e.PromptTokens, e.CachedTokens)
	}
	h.unlist(r)
}

// forget drops a request that never ran.
func (h *Handover) forget(r *request) {
	if r.held {
		h.unqueue(r)
	}
	r.engine.pred.Drop(h.now, r.live)
	h.unlist(r)
}

func (h *Handover) unlist(r *request) {
	delete(h.requests, r.id)
	e := r.engine
	last := len(e.requests) - 1
	e.requests[r.place] = e.requests[last]
	e.requests[r.place].place = r.place
	e.requests[last] = nil
	e.requests = e.requests[:last]
	if r.atEnd < e.largest {
		return
	}
	e.largest = 0
	for _, x := range e.requests {
		e.largest = max(e.largest, x.atEnd)
	}
}
