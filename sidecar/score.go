package sidecar

import (
	"context"
	"sync"
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
	objectives []slo.Objective
	// spare is what a request may wait when there is no TTFT objective.
	spare   time.Duration
	now     func() time.Time
	start   time.Time
	metrics *telemetry.Metrics

	mu       sync.Mutex
	counters []*slo.Counter // one an objective
	latency  []latencies    // likewise
	prefill  time.Duration  // decayed mean of TTFT without held time
	ratio    kvbudget.Ratio // prompt bytes a token, for what a limit goes by before usage is known
}

// latencies are the histograms of an objective's kinds, each of promised samples.
type latencies struct {
	ttft, tbt, e2e *telemetry.Latencies
}

// promise is what one request was promised.
type promise struct {
	slo.Promise
	objective    int // index in score.objectives
	stream       bool
	promptTokens int // as known on arrival: counted, or estimated from the bytes
}

// prefillDecay weighs the newest TTFT: about the last twenty requests count.
const prefillDecay = 0.05

func newScore(c config.SLO, spare time.Duration, now func() time.Time, m *telemetry.Metrics) *score {
	s := &score{objectives: c.Declared(), spare: spare, now: now, start: now(), metrics: m, ratio: kvbudget.NewRatio()}
	for _, o := range s.objectives {
		s.counters = append(s.counters, slo.NewCounter(o))
		s.latency = append(s.latency, latencies{&telemetry.Latencies{}, &telemetry.Latencies{}, &telemetry.Latencies{}})
	}
	m.ShowObjectives(s.export)
	return s
}

// promise is what a request that arrived is promised: by its model and tier, and
// by its own headers.
func (s *score) promise(ctx context.Context, r proxy.Request) *promise {
	a := askedOf(ctx)
	at := slo.Pick(s.objectives, r.Model, a.tier) // never -1: the default fits all
	p := &promise{Promise: s.objectives[at].Promise(), objective: at, stream: r.Stream, promptTokens: r.PromptTokens}
	if p.promptTokens == 0 && p.TTFT.PerToken > 0 {
		s.mu.Lock()
		p.promptTokens = s.ratio.Tokens(r.PromptBytes)
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

// slack is the time that a request which arrived then can still wait, at least 0.
func (s *score) slack(p *promise, arrived time.Time) time.Duration {
	if p.TTFT.For(p.promptTokens) <= 0 {
		return s.spare
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(0, p.Slack(p.promptTokens, s.now().Sub(arrived), s.prefill))
}

// predictedPrefill is the decayed mean of what requests took from the server to
// their first token.
func (s *score) predictedPrefill() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.prefill
}

// gap counts one gap between two content chunks.
func (s *score) gap(p *promise, at time.Time, d time.Duration) {
	if p == nil {
		return
	}
	s.mu.Lock()
	t, ok := s.counters[p.objective].Gap(at.Sub(s.start), p.Promise, d)
	s.mu.Unlock()
	if ok {
		s.latency[p.objective].tbt.Record(d)
		s.metrics.Judged(s.objectives[p.objective].Name, slo.TBT.String(), word(t))
	}
}

// done scores one ended request. A caller that left, or a request that never
// could be answered for its own fault, was promised nothing.
func (s *score) done(p *promise, r proxy.Record) {
	if p == nil || r.Outcome == proxy.OutcomeClientGone || r.Outcome == proxy.OutcomeUpstreamRefused || r.Outcome == proxy.OutcomeRequestUnreadable {
		return
	}
	e := ended(p, r)
	s.mu.Lock()
	if e.Content {
		s.learn(e.TTFT - r.Held)
	}
	if r.TokenSource == proxy.TokensFromUsage {
		s.ratio.Learn(r.PromptBytes, r.PromptTokens)
	}
	verdict := s.counters[p.objective].Request(r.End.Sub(s.start), p.Promise, e)
	s.mu.Unlock()
	s.observe(p.objective, verdict, e)
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
func (s *score) observe(objective int, v slo.Verdict, e slo.Ended) {
	for k, t := range v {
		if t.N() > 0 {
			s.metrics.Judged(s.objectives[objective].Name, slo.Kind(k).String(), word(t))
		}
	}
	if v[slo.TTFT].N() > 0 && e.Content {
		s.latency[objective].ttft.Record(e.TTFT)
	}
	if v[slo.E2E].N() > 0 && e.OK {
		s.latency[objective].e2e.Record(e.E2E)
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

func (s *score) learn(prefill time.Duration) {
	if s.prefill == 0 {
		s.prefill = prefill
		return
	}
	s.prefill += time.Duration(prefillDecay * float64(prefill-s.prefill))
}
