package sidecar

import (
	"sync/atomic"
	"time"

	"github.com/lull-project/lull/telemetry"
)

// ServedState is what of requests is known without any objective, since the start.
type ServedState struct {
	// Requests are those that have ended, however they did.
	Requests int64 `json:"requests"`
	// TTFTP50 and TTFTP99 are over the TTFTSamples answers that had content, held time
	// included; 0 without any.
	TTFTSamples int64         `json:"ttft_samples"`
	TTFTP50     time.Duration `json:"ttft_p50_ns"`
	TTFTP99     time.Duration `json:"ttft_p99_ns"`
}

// served counts them; its methods are safe for concurrent use.
type served struct {
	ended atomic.Int64
	ttft  telemetry.Latencies
}

// count takes one ended request, with its TTFT where it had one.
func (s *served) count(ttft time.Duration, content bool) {
	s.ended.Add(1)
	if content {
		s.ttft.Record(ttft)
	}
}

func (s *served) state() ServedState {
	out := ServedState{Requests: s.ended.Load()}
	quantiles, n := s.ttft.Quantiles(0.5, 0.99)
	if out.TTFTSamples = n; n > 0 {
		out.TTFTP50, out.TTFTP99 = quantiles[0], quantiles[1]
	}
	return out
}
