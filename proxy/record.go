package proxy

import "time"

// Record is the account of one interpreted request. Times are the injected
// clock's; a zero time means that it never came to that.
type Record struct {
	// ID is the proxy's own, RequestID the X-Request-Id that the upstream saw
	// (the caller's, or ID).
	ID, RequestID       string
	Path, Model, Engine string
	// Stream says that the answer was an event stream.
	Stream bool

	// Outcome is how it ended; Admission is the Gate's word, kept beside it.
	Outcome, Admission string
	// Status is the status sent to the client; 0 means that none was.
	Status int
	// Err is what broke it, nil for a whole answer.
	Err error

	// Held is the time inside Gate.Admit.
	Held time.Duration
	// Overhead is Lull's own time until End: all but Parked, waiting for the upstream,
	// and writes of over 10 ms, which waited for whom they went to. It begins when the
	// kernel had the request's last byte, and a wait ends when it had the upstream's
	// bytes; where that is not known (see package arrival, and HTTP/2), when they were
	// read, and the time it takes to wake a thread is not in it.
	Overhead time.Duration
	// Arrived: request fully read. Forwarded: handed to the transport. Headers:
	// the upstream's headers came. FirstByte: first byte of the body written to
	// the client. End: the account was closed.
	Arrived, Forwarded, Headers, FirstByte, End time.Time
	// FirstContent and LastContent: the first and the last content event were
	// written to the client (without streaming: the body part with the content).
	FirstContent, LastContent time.Time
	// FirstEvent and LastEvent are the same for generation events.
	FirstEvent, LastEvent time.Time

	// As scanned from the request; see Request.
	PromptBytes, MaxTokens, Sequences int

	// Contents counts content events: those with non-empty text, reasoning, tool
	// call or audio. Role-only, usage-only and error events, comments and [DONE]
	// are none.
	Contents int
	// Events counts generation events: every content event, and every event that
	// has a choice, whose choice has no role and whose finish_reason is null (an
	// engine with random weights sends text "" there), or that says done or stop
	// false, as Ollama and llama.cpp do.
	Events int
	// OutputTokens and PromptTokens are from usage where it came (the largest seen),
	// and then TokenSource is "usage"; else OutputTokens is Contents and the source
	// "events" (streams only); else the source is "". CachedTokens are among
	// PromptTokens, whether or not the dialect's own number has them.
	OutputTokens, PromptTokens, CachedTokens int
	TokenSource                              string
	// Terminated says that a stream ended with [DONE] or its dialect's own end;
	// Triton's have none.
	Terminated bool

	RequestBytes, ResponseBytes int64
}

// Token sources.
const (
	TokensFromUsage  = "usage"
	TokensFromEvents = "events"
)

// Failed says that the request did not get a whole, good answer.
func (r Record) Failed() bool {
	switch r.Outcome {
	case OutcomeForwarded, OutcomeHeldForwarded, OutcomeForwardedUnconfirmed, OutcomeRerouted:
		return false
	}
	return true
}

// Parked is the part of Held for which the Gate held the request for memory. There is
// none where it said at once that the request may go or that its queue is full.
func (r Record) Parked() time.Duration {
	switch r.Admission {
	case "", OutcomeForwarded, OutcomeRejectedCapacity:
		return 0
	}
	return r.Held
}

// TTFT is the time from the request fully read to the first content event
// written to the client. There is none for an answer without content and none
// for one that the upstream called an error, in its status or in its stream.
func (r Record) TTFT() (time.Duration, bool) {
	if r.FirstContent.IsZero() || r.Outcome == OutcomeUpstreamError || r.Outcome == OutcomeUpstreamRefused {
		return 0, false
	}
	return r.FirstContent.Sub(r.Arrived), true
}

// TPOT is (last − first content)/(output tokens − 1), with the tokens of usage
// where they are known. There is none below two tokens or without a stream.
func (r Record) TPOT() (time.Duration, bool) {
	if !r.Stream || r.OutputTokens < 2 || r.FirstContent.IsZero() {
		return 0, false
	}
	return r.LastContent.Sub(r.FirstContent) / time.Duration(r.OutputTokens-1), true
}
