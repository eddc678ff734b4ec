package faults

import "context"

// errorAfter has the engine break down once n tokens are out: an error event in
// a stream that began with status 200, status 500 in an answer that is no stream.
func errorAfter(n int) wrapper {
	return func(next Sink) Sink { return errorFault{next, n} }
}

type errorFault struct {
	Sink
	after int
}

func (f errorFault) Send(ctx context.Context, e Event) error {
	if e.Tokens > f.after {
		return ErrEngine
	}
	return f.Sink.Send(ctx, e)
}
