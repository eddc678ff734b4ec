package slo

import "time"

// Objective is what a request was promised; 0 means no promise.
type Objective struct {
	// TTFT is request fully read to the first chunk with content.
	TTFT time.Duration
	// TBT is the gap between two chunks with content, and the mean of a request's.
	TBT time.Duration
}

// Slack is the time that a request can still wait before its prefill must
// start: the promise, less the time gone and the predicted prefill. It is
// negative when the promise cannot be kept, and 0 without a promise: waiting
// for the sake of nothing is not spare time.
func (o Objective) Slack(now, arrivedAt, prefill time.Duration) time.Duration {
	if o.TTFT <= 0 {
		return 0
	}
	return o.TTFT - (now - arrivedAt) - prefill
}
