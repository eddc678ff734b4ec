package faults

import "context"

// resetAfter breaks the connection with a TCP reset once n tokens are out.
func resetAfter(n int) wrapper {
	return func(next Sink) Sink { return resetFault{next, n} }
}

type resetFault struct {
	Sink
	after int
}

func (f resetFault) Send(ctx context.Context, e Event) error {
	if e.Tokens > f.after {
		return ErrReset
	}
	return f.Sink.Send(ctx, e)
}
