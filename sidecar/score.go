package sidecar

import (
	"sync"
	"time"

	"github.com/lull-project/lull/proxy"
	"github.com/lull-project/lull/slo"
	"github.com/lull-project/lull/telemetry"
)

// score counts what was promised and what was kept, and knows how much of a
// promise a request can spend on waiting.
type score struct {
	objective slo.Objective
	// spare is what a request may wait when there is no TTFT objective.
	spare   time.Duration
	now     func() time.Time
	metrics *telemetry.Metrics

	mu      sync.Mutex
	counter slo.Counter
	prefill time.Duration // decayed mean of TTFT without held time
}

// prefillDecay weighs the newest TTFT: about the last twenty requests count.
const prefillDecay = 0.05

// slack is the time that a request which arrived then can still wait, at least 0.
func (s *score) slack(arrived time.Time) time.Duration {
	if s.objective.TTFT <= 0 {
		return s.spare
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(0, s.objective.Slack(s.now().Sub(arrived), 0, s.prefill))
}

// predictedPrefill is the decayed mean of what requests took from the server to
// their first token.
func (s *score) predictedPrefill() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.prefill
}

func (s *score) gap(d time.Duration) {
	if s.objective.TBT <= 0 {
		return
	}
	s.mu.Lock()
	s.counter.Gap(s.objective, d)
	s.mu.Unlock()
	s.metrics.Objective("tbt", d <= s.objective.TBT)
}

// done scores one ended request. A caller that left, or a request that never
// could be answered for its own fault, was promised nothing.
func (s *score) done(r proxy.Record) {
	if r.Outcome == proxy.OutcomeClientGone || r.Outcome == proxy.OutcomeUpstreamRefused || r.Outcome == proxy.OutcomeRequestUnreadable {
		return
	}
	ttft, ok := r.TTFT()
	s.mu.Lock()
	defer s.mu.Unlock()
	if ok {
		s.learn(ttft - r.Held)
	}
	if s.objective.TTFT > 0 {
		if ok {
			s.counter.TTFT(s.objective, ttft)
			s.metrics.Objective("ttft", ttft <= s.objective.TTFT)
		} else {
			s.counter.Missing()
			s.metrics.Objective("ttft", false)
		}
	}
	if s.objective.TBT > 0 && r.Stream && ok {
		s.counter.Mean(s.objective, 0, r.LastContent.Sub(r.FirstContent), r.OutputTokens)
	}
}

func (s *score) learn(prefill time.Duration) {
	if s.prefill == 0 {
		s.prefill = prefill
		return
	}
	s.prefill += time.Duration(prefillDecay * float64(prefill-s.prefill))
}

// attainment is what was counted so far.
func (s *score) attainment() slo.Attainment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counter.Attainment()
}
