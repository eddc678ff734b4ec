package proxy

import (
	"context"
	"time"
)

// Gate decides whether and when an interpreted request goes to its upstream.
type Gate interface {
	// Admit returns when the request may go or must be refused. ctx ends when the
	// caller leaves; what Admit then returns no longer matters. It is called at
	// most once per interpreted request: not at all when its body could not be
	// read (Record.Admission is then empty).
	Admit(ctx context.Context, r Request) Verdict
}

// Observer is told what happens to interpreted requests. Its methods run on the
// relay's goroutine and must be quick; a panic in one is caught and counted
// (Stats.Faults).
type Observer interface {
	// Content is one content event that was written to the client at the given
	// time. tokens is 1, or, from an engine that repeats its usage on every event,
	// the rise of completion tokens.
	Content(id string, at time.Time, tokens int)
	// Done is called exactly once per interpreted request, for every ending.
	Done(Record)
}

// EventObserver is an Observer that also wants every generation event (see
// Record.Events), whether or not it carries text: engines with random weights
// decode to empty text, yet their events mark the same steps.
type EventObserver interface {
	Event(id string, at time.Time)
}

// Request is what the proxy knows of an interpreted request when its body has
// been read.
type Request struct {
	// ID is unique in this process; it is not the caller's X-Request-Id.
	ID string
	// Path is the URL path, Model the body's model, or the path's where that names it (at most 128 bytes of it),
	// Engine the name of the upstream that would serve it.
	Path, Model, Engine string
	// Stream is the body's own word; whether the answer is a stream is decided by
	// its media type.
	Stream bool
	// PromptBytes is the decoded length in bytes of the prompt's text: strings
	// under messages, prompt, input, system, instructions and tools, except
	// those that carry media or names (image_url, data, role, type, ...).
	PromptBytes int
	// ToolBytes are those of PromptBytes that describe tools.
	ToolBytes int
	// Media is what the prompt has beside text.
	Media Media
	// PromptTokens is the count of token ids, where the prompt was given so.
	PromptTokens int
	// Prefix marks how the prompt begins, at growing lengths; nil for a short one.
	Prefix []Mark
	// MaxTokens is the answer's limit per sequence; 0 means that none was given.
	MaxTokens int
	// Sequences is max(n, best_of) times the number of prompts, at least 1.
	Sequences int
	// ArrivedAt is when the request was fully read.
	ArrivedAt time.Time
}

// Media counts what a prompt has beside text, whatever the size of each. A document
// that Anthropic's dialect sends as a source counts as an image.
type Media struct{ Images, Audios, Videos, Files int }

// Mover is a Gate that wants to know when a request that it has spoken for goes to
// another upstream than that of its arrival.
type Mover interface {
	// Moved is called before the request goes there; it may take as long as Admit
	// may for a request that cannot wait.
	Moved(id, engine string)
}

// Verdict is the Gate's answer.
type Verdict struct {
	Forward bool
	// Outcome is the word for Record.Admission: forwarded, held_forwarded,
	// forwarded_unconfirmed or rejected_*. Empty means forwarded, or
	// rejected_deadline.
	Outcome string
	// RetryAfter goes out as Retry-After in whole seconds, rounded up, at least 1.
	RetryAfter time.Duration
	// Status is 503 or 429; 0 means 429 for rejected_capacity, else 503. Code and
	// Message fill the OpenAI-shaped body; empty ones get defaults.
	Status        int
	Code, Message string
}

// The words of Record.Outcome. The first six are those of admission and also appear in
// Record.Admission; the others are endings that the proxy saw.
const (
	OutcomeForwarded            = "forwarded"
	OutcomeHeldForwarded        = "held_forwarded"
	OutcomeForwardedUnconfirmed = "forwarded_unconfirmed"
	// OutcomeRerouted is a request that the Gate refused for one engine and that
	// another served (Config.Failover).
	OutcomeRerouted         = "rerouted"
	OutcomeRejectedDeadline = "rejected_deadline"
	OutcomeRejectedCapacity = "rejected_capacity"

	// OutcomeRequestUnreadable is a body that could not be read, or one above
	// MaxBodyBytes.
	OutcomeRequestUnreadable = "request_unreadable"
	// OutcomeClientGone is a caller that left: in its upload, while held, before
	// headers or mid-answer. One that left after a stream's own end ([DONE]) has had
	// its answer, and is none.
	OutcomeClientGone = "client_gone"
	// OutcomeUpstreamRefused is a 4xx of the upstream, passed on unchanged.
	OutcomeUpstreamRefused = "upstream_refused"
	// OutcomeUpstreamError is a 5xx of the upstream, or an error event inside a
	// stream that began with 200.
	OutcomeUpstreamError = "upstream_error"
	// OutcomeUpstreamUnreachable is an upstream that could not be dialled or closed
	// the connection before it answered: 502 by Lull.
	OutcomeUpstreamUnreachable = "upstream_unreachable"
	// OutcomeUpstreamTimeout is FirstByteLimit passed before headers: 504 by Lull.
	OutcomeUpstreamTimeout = "upstream_timeout"
	// OutcomeBrokenStream is an answer that broke off; the client's transfer was
	// broken too.
	OutcomeBrokenStream = "broken_stream"
	// OutcomeIdle is an answer without a byte for IdleLimit; ends as a broken one.
	OutcomeIdle = "upstream_idle"
	// OutcomeUnauthorized is a request without one of Config.Keys: 401 by Lull. The
	// Gate was not asked and the body not read.
	OutcomeUnauthorized = "unauthorized"
	// OutcomeDraining is a request that came while Lull drains: 503 by Lull, likewise.
	OutcomeDraining = "rejected_draining"
	// OutcomeCut is a request that was cut (ErrCut): 503 by Lull before headers, a
	// broken transfer after.
	OutcomeCut = "cut"
	// OutcomeInternal is a fault of Lull's own on this request.
	OutcomeInternal = "internal_error"
)

// The codes of Lull's own answers, beside those a Verdict names.
const (
	CodeUnreachable = "lull_upstream_unreachable"
	CodeTimeout     = "lull_upstream_timeout"
	CodeBody        = "lull_request_unreadable"
	CodeTooLarge    = "lull_request_too_large"
	// CodeUnauthorized stands for OutcomeUnauthorized, CodeDraining for
	// OutcomeDraining and for OutcomeCut.
	CodeUnauthorized = "lull_unauthorized"
	CodeDraining     = "lull_draining"
)
