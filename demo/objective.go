package demo

import (
	"context"
	"fmt"
	"time"
)

// Objectives are the latencies that a user was promised, measured once on an
// idle server and used by every phase.
type Objectives struct {
	TTFT, TBT time.Duration
}

const (
	objectiveFactor  = 4  // an objective is this many times the idle mean
	objectiveTTFTs   = 40 // requests for the TTFT mean, one at a time, left after the first token
	objectiveAnswers = 5  // whole answers for the mean gap

	// objectiveKVFrac leaves training a small fixed budget while a real server's
	// objectives are measured.
	objectiveKVFrac = 0.9
)

// measureObjectives sends requests one at a time through the sidecar.
func measureObjectives(ctx context.Context, c *client, reqs []Request) (Objectives, error) {
	var ttfts, gaps []time.Duration
	for _, r := range spread(reqs, objectiveTTFTs) {
		res := c.send(ctx, r, time.Now(), true)
		if res.Err != nil {
			return Objectives{}, fmt.Errorf("demo: measure objectives: %w; no phase is run without them", res.Err)
		}
		ttft, _ := res.TTFT()
		ttfts = append(ttfts, ttft)
	}
	for _, r := range spread(longAnswers(reqs), objectiveAnswers) {
		res := c.send(ctx, r, time.Now(), false)
		if res.Err != nil {
			return Objectives{}, fmt.Errorf("demo: measure objectives: %w; no phase is run without them", res.Err)
		}
		gaps = append(gaps, res.Gaps()...)
	}
	if len(gaps) == 0 {
		return Objectives{}, fmt.Errorf("demo: measure objectives: %d answers without a gap between chunks; no phase is run without an objective", objectiveAnswers)
	}
	return Objectives{TTFT: objectiveFactor * mean(ttfts), TBT: objectiveFactor * mean(gaps)}, nil
}

// longAnswers are the requests whose answers have gaps to measure.
func longAnswers(reqs []Request) []Request {
	var long []Request
	for _, r := range reqs {
		if r.OutputTokens >= 8 {
			long = append(long, r)
		}
	}
	if len(long) == 0 {
		return reqs
	}
	return long
}
