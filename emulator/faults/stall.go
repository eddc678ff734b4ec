package faults

import "context"

// stallAfter sends nothing more once n tokens are out, and keeps the connection
// open until the client leaves.
func stallAfter(n int) wrapper {
	return func(next Sink) Sink { return stallFault{next, n} }
}

type stallFault struct {
	Sink
	after int
}

func (f stallFault) Send(ctx context.Context, e Event) error {
	if e.Tokens <= f.after {
		return f.Sink.Send(ctx, e)
	}
	<-ctx.Done()
	return context.Cause(ctx)
}
