package slo

import "time"

// Kind is what an objective is about.
type Kind uint8

// The kinds. TTFT is request fully read to the first chunk with content; TBT is
// every gap between two chunks with content, none trimmed; TPOT is one number a
// request, (last - first content) / (tokens - 1), held to TBT's limit; E2E is
// request fully read to the end of a whole answer; Success is a whole answer.
const (
	TTFT Kind = iota
	TBT
	TPOT
	E2E
	Success
	kinds
)

var kindNames = [kinds]string{"ttft", "tbt", "tpot", "e2e", "success"}

// String is the kind's name in metrics and JSON.
func (k Kind) String() string { return kindNames[k] }

// Objective is what the requests of one model and tier are promised at some hours
// or always. A zero limit is no promise.
type Objective struct {
	// Name tells it from the others in metrics.
	Name string
	// Model and Tier are whom it is for; "" is all.
	Model, Tier string
	// Hours are when it holds.
	Hours Hours

	TTFT     Line
	TBT, E2E time.Duration
	// The targets; 0 means DefaultTarget. TBTTarget is also that of TPOT.
	TTFTTarget, TBTTarget, E2ETarget Target
	// Success is the share of requests that must get a whole answer; 0 is no
	// promise.
	Success Target
}

// Target is the share of a kind's samples that must be within.
func (o Objective) Target(k Kind) Target {
	t := [kinds]Target{o.TTFTTarget, o.TBTTarget, o.TBTTarget, o.E2ETarget, o.Success}[k]
	if t == 0 {
		return DefaultTarget
	}
	return t
}

// Limit is a kind's limit in words; "" where there is none.
func (o Objective) Limit(k Kind) string {
	switch {
	case k == TTFT && o.TTFT.Base > 0:
		return o.TTFT.String()
	case (k == TBT || k == TPOT) && o.TBT > 0:
		return ascii(o.TBT)
	case k == E2E && o.E2E > 0:
		return ascii(o.E2E)
	}
	return ""
}

// Pick is the index of the first objective for a model and a tier at a time of the
// week, -1 if none is: put the special ones first.
func Pick(all []Objective, model, tier string, at Moment) int {
	for i, o := range all {
		if (o.Model == "" || o.Model == model) && (o.Tier == "" || o.Tier == tier) && o.Hours.Hold(at) {
			return i
		}
	}
	return -1
}

// Promise is what one request was promised: its objective's limits, or the
// client's own. A zero limit is no promise.
type Promise struct {
	TTFT           Line
	TBT, TPOT, E2E time.Duration
	Success        bool
}

// Promise is what a request under this objective is promised.
func (o Objective) Promise() Promise {
	return Promise{TTFT: o.TTFT, TBT: o.TBT, TPOT: o.TBT, E2E: o.E2E, Success: o.Success > 0}
}

// Slack is the time that a request of so many prompt tokens can still wait
// before its prefill must start: the promise, less the time gone since it
// arrived and the predicted prefill. It is negative when the promise cannot be
// kept, and 0 without a promise: waiting for the sake of nothing is not spare
// time.
func (p Promise) Slack(tokens int, gone, prefill time.Duration) time.Duration {
	limit := p.TTFT.For(tokens)
	if limit <= 0 {
		return 0
	}
	return limit - gone - prefill
}
