package sidecar

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/kvbudget"
	"github.com/lull-project/lull/proxy"
	"github.com/lull-project/lull/slo"
	"github.com/lull-project/lull/telemetry"
)

// score counts what was promised and what was kept, and knows how much of a
// promise a request can spend on waiting.
type score struct {
	book atomic.Pointer[book]
	// spare is what a request may wait when there is no TTFT objective.
	spare   time.Duration
	served  served
	now     func() time.Time
	metrics *telemetry.Metrics

	mu      sync.Mutex        // guards the counters of all accounts too
	prefill slo.Prefill       // of TTFT without held time
	prompts *kvbudget.Prompts // for what a limit goes by before usage is known
}

// promise is what one request was promised.
type promise struct {
	slo.Promise
	account      *account
	stream       bool
	content      kvbudget.Content
	promptTokens int // as known on arrival: counted, or estimated from the content
}

func newScore(c config.SLO, spare time.Duration, now func() time.Time, m *telemetry.Metrics) *score {
	s := &score{spare: spare, now: now, metrics: m, prompts: kvbudget.NewPrompts()}
	s.declare(c)
	m.ShowObjectives(s.export)
	return s
}

// promise is what a request that arrived is promised: by its model, its tier and
// the hour, and by its own headers.
func (s *score) promise(ctx context.Context, r proxy.Request) *promise {
	a := askedOf(ctx)
	account := s.book.Load().pick(r.Model, a.tier, r.ArrivedAt)
	p := &promise{Promise: account.objective.Promise(), account: account, stream: r.Stream, promptTokens: r.PromptTokens,
		content: kvbudget.Content{Bytes: r.PromptBytes, ToolBytes: r.ToolBytes, Media: kvbudget.Media(r.Media)}}
	if p.promptTokens == 0 {
		s.mu.Lock()
		p.promptTokens = s.prompts.Tokens(r.Model, p.content)
		s.mu.Unlock()
	}
	if a.ttft > 0 {
		p.TTFT = slo.Constant(a.ttft)
	}
	if a.tpot > 0 {
		p.TPOT = a.tpot
	}
	return p
}

// slack is the time that a request which arrived then can still wait; below 0 its
// promise is lost already, whatever is done for it.
func (s *score) slack(p *promise, arrived time.Time) time.Duration {
	if p.TTFT.For(p.promptTokens) <= 0 {
		return s.spare
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.Slack(p.promptTokens, s.now().Sub(arrived), s.prefill.For(p.promptTokens))
}

// prefillPerToken is what a token of a prompt takes the server, 0 unknown.
func (s *score) prefillPerToken() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.prefill.PerToken()
}

// predictedPrefill is what a prompt of so many tokens takes from the server to its
// first token, by what the last requests took.
func (s *score) predictedPrefill(tokens int) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.prefill.For(tokens)
}

// gap counts one gap between two content chunks.
func (s *score) gap(p *promise, at time.Time, d time.Duration) {
	if p == nil {
		return
	}
	s.mu.Lock()
	t, ok := p.account.counter.Gap(at.Sub(p.account.since), p.Promise, d)
	s.mu.Unlock()
	if ok {
		p.account.tbt.Record(d)
		s.metrics.Judged(p.account.objective.Name, slo.TBT.String(), word(t))
	}
}

// done scores one ended request. A caller that left, or a request that never
// could be answered for its own fault, was promised nothing.
func (s *score) done(p *promise, r proxy.Record) {
	s.served.count(r.TTFT())
	if p == nil || r.Outcome == proxy.OutcomeClientGone || r.Outcome == proxy.OutcomeUpstreamRefused || r.Outcome == proxy.OutcomeRequestUnreadable {
		return
	}
	e := ended(p, r)
	s.mu.Lock()
	if e.Content {
		s.prefill.Learn(e.PromptTokens, e.TTFT-r.Held)
	}
	if r.TokenSource == proxy.TokensFromUsage {
		s.prompts.Learn(r.Model, p.content, r.PromptTokens)
	}
	verdict := p.account.counter.Request(r.End.Sub(p.account.since), p.Promise, e)
	s.mu.Unlock()
	s.observe(p.account, verdict, e)
}

// ended is a record in the core's words. The prompt's tokens are those of usage
// where it came.
func ended(p *promise, r proxy.Record) slo.Ended {
	ttft, content := r.TTFT()
	e := slo.Ended{
		OK: !r.Failed(), Content: content, TTFT: ttft, PromptTokens: p.promptTokens, Stream: p.stream || r.Stream,
		OutputTokens: r.OutputTokens, E2E: r.End.Sub(r.Arrived),
	}
	if r.TokenSource == proxy.TokensFromUsage && r.PromptTokens > 0 {
		e.PromptTokens = r.PromptTokens
	}
	if content {
		e.Generation = r.LastContent.Sub(r.FirstContent)
	}
	return e
}

// observe passes a request on to metrics and histograms.
func (s *score) observe(to *account, v slo.Verdict, e slo.Ended) {
	for k, t := range v {
		if t.N() > 0 {
			s.metrics.Judged(to.objective.Name, slo.Kind(k).String(), word(t))
		}
	}
	if v[slo.TTFT].N() > 0 && e.Content {
		to.ttft.Record(e.TTFT)
	}
	if v[slo.E2E].N() > 0 && e.OK {
		to.e2e.Record(e.E2E)
	}
}

// word is the result of one sample.
func word(t slo.Tally) string {
	switch {
	case t.Within > 0:
		return "within"
	case t.Beyond > 0:
		return "beyond"
	}
	return "no_data"
}
