package sidecar

import (
	"context"
	"net/http"
	"time"

	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/kvbudget"
	"github.com/lull-project/lull/proxy"
	"github.com/lull-project/lull/telemetry"
)

var (
	_ proxy.Gate          = (*gate)(nil)
	_ proxy.Observer      = (*gate)(nil)
	_ proxy.EventObserver = (*gate)(nil)
	_ proxy.Mover         = (*gate)(nil)
)

// answerLimit bounds the wait for the loop itself, beyond the time that a
// request can spare: a loop that does not answer must not delay a client.
const answerLimit = 50 * time.Millisecond

// gate stands between the proxy and the loop.
type gate struct {
	loop    *loop
	metrics *telemetry.Metrics
	score   *score
	lent    func() bool // is there a core to ask
	first   string      // the engine that serves while it is not down
	ledgers ledgers
}

// Admit parks the request until the core has spoken. It fails open: without a
// core, or when the loop does not answer in time, the request goes.
func (g *gate) Admit(ctx context.Context, r proxy.Request) proxy.Verdict {
	g.metrics.RequestStarted()
	id := handover.RequestID(r.ID)
	in := g.ledgers.of(r.Engine, r.Model)
	req := g.loop.requests.add(id, in.id, g.loop.now())
	req.promise = g.score.promise(ctx, r)
	req.tier, req.from = askedOf(ctx).tier, g.loop.compute.mark(g.loop.now())
	if !g.lent() {
		req.decided.Store(true)
		return proxy.Verdict{Forward: true, Outcome: proxy.OutcomeForwarded}
	}
	slack := g.score.slack(req.promise, r.ArrivedAt)
	promised := req.promise.TTFT.For(req.promise.promptTokens) > 0
	limit, stop := context.WithTimeout(ctx, slack+answerLimit)
	defer stop()
	req.asked = handover.Arrived{
		ID: id, Engine: in.id, Model: r.Model, PromptBytes: r.PromptBytes, ToolBytes: r.ToolBytes, Media: kvbudget.Media(r.Media),
		PromptTokens: r.PromptTokens, Prefix: marksOf(r.Prefix),
		MaxTokens: r.MaxTokens, Sequences: r.Sequences, Slack: slack, Tier: req.tier, Promised: promised,
	}
	g.loop.post(limit, input{event: arrivedAt(req.asked)})
	if in.await > slack {
		limit, stop = req.untilParked(ctx, limit, in.await+answerLimit)
		defer stop()
	}
	select {
	case v := <-req.verdict:
		return refusalOrGo(v)
	case <-limit.Done():
		req.decided.Store(true)
		return proxy.Verdict{Forward: true, Outcome: proxy.OutcomeForwardedUnconfirmed}
	}
}

func refusalOrGo(v verdict) proxy.Verdict {
	if v.forward {
		return proxy.Verdict{Forward: true, Outcome: string(v.outcome)}
	}
	out := proxy.Verdict{Outcome: string(v.outcome), RetryAfter: v.retryAfter, Status: http.StatusServiceUnavailable,
		Code: "lull_memory_late", Message: "memory for this request could not be made free in time; try again later"}
	if v.outcome == handover.OutcomeRejectedCapacity {
		out.Status, out.Code = http.StatusTooManyRequests, "lull_queue_full"
		out.Message = "too many requests wait for memory; try again later"
	}
	return out
}

func arrivedAt(a handover.Arrived) func(handover.At) handover.Event {
	return func(at handover.At) handover.Event {
		a.At = at
		return a
	}
}

// Moved charges a request to the engine that it goes to after all, without asking
// again whether it may: it goes.
func (g *gate) Moved(id, engine string) {
	req := g.loop.requests.get(handover.RequestID(id))
	if req == nil || req.asked.ID == "" { // without a core
		return
	}
	req.asked.Engine, req.asked.Slack = g.ledgers.of(engine, req.asked.Model).id, 0
	gone := input{event: func(at handover.At) handover.Event {
		return handover.Finished{At: at, ID: req.id, Refused: true}
	}}
	came := input{do: func(*loop) { req.engine = req.asked.Engine }, event: arrivedAt(req.asked)}
	// In this order and before the request's end, or not at all: the core would keep
	// one for ever that came after its end.
	limit, stop := context.WithTimeout(g.loop.ctx, answerLimit)
	defer stop()
	if g.loop.post(limit, gone) {
		g.loop.post(limit, came)
	}
}

// Content counts a content event and its gap.
func (g *gate) Content(id string, at time.Time, tokens int) {
	req := g.loop.requests.get(handover.RequestID(id))
	if req == nil {
		return
	}
	req.tokens.Add(int64(tokens))
	offset := int64(at.Sub(g.loop.start))
	if last := req.lastAt.Swap(offset); last != 0 {
		gap := time.Duration(offset - last)
		g.metrics.Gap(gap)
		g.score.gap(req.promise, at, gap)
		g.loop.compute.gap(req.promise, gap)
	}
}

// Event counts a step of generation, also one whose text is empty: it took KV
// all the same.
func (g *gate) Event(id string, at time.Time) {
	if req := g.loop.requests.get(handover.RequestID(id)); req != nil {
		req.events.Add(1)
		req.stepAt.Store(int64(at.Sub(g.loop.start)))
	}
}

// Done closes the account of a request and tells the core, once for every
// ending. The core comes first: whatever becomes of the counting, a request that
// the core never sees end keeps its memory from training for ever.
func (g *gate) Done(r proxy.Record) {
	req := g.loop.requests.get(handover.RequestID(r.ID))
	g.finish(r)
	if req == nil {
		g.metrics.RequestStarted() // ended before it was admitted: its body could not be read
		req = &request{}
	}
	ttft, _ := r.TTFT()
	g.metrics.RequestDone(telemetry.Request{
		Model: r.Model, Outcome: r.Outcome, TTFT: ttft, Held: r.Parked(), Overhead: r.Overhead,
		PromptTokens: r.PromptTokens, OutputTokens: r.OutputTokens, TokenSource: r.TokenSource,
	})
	if r.Engine != "" && r.Engine != g.first {
		g.metrics.Failover(r.Engine)
	}
	g.score.done(req.promise, r)
	g.loop.compute.ended(g.loop.now(), req.from, used(req.promise, r), g.loop.missPrice(req.tier))
}

// finish hands the end to the loop and waits for nothing.
func (g *gate) finish(r proxy.Record) {
	id := handover.RequestID(r.ID)
	finished := input{event: func(at handover.At) handover.Event {
		g.loop.requests.remove(id)
		f := handover.Finished{At: at, ID: id, Refused: unrun(r)}
		if r.TokenSource == proxy.TokensFromUsage {
			f.PromptTokens, f.CachedTokens, f.OutputTokens = r.PromptTokens, r.CachedTokens, r.OutputTokens
		}
		return f
	}}
	select {
	case g.loop.inputs <- finished:
	default: // the loop is far behind: a goroutine of its own waits, the relay does not
		go g.loop.post(g.loop.ctx, finished)
	}
}

// marksOf is the marks of a prompt in the core's words.
func marksOf(prefix []proxy.Mark) []kvbudget.Mark {
	if len(prefix) == 0 {
		return nil
	}
	out := make([]kvbudget.Mark, len(prefix))
	for i, m := range prefix {
		out[i] = kvbudget.Mark(m)
	}
	return out
}

// unrun says that the server refused a request and no token came of it.
func unrun(r proxy.Record) bool {
	return r.Outcome == proxy.OutcomeUpstreamRefused && r.Events == 0 && r.OutputTokens == 0
}
