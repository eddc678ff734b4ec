package faults

import "context"

// splitWrites cuts each event into writes of n bytes, each flushed alone, so that
// it may arrive in pieces that end anywhere, in the middle of a character too.
func splitWrites(n int) wrapper {
	return func(next Sink) Sink { return splitFault{next, n} }
}

type splitFault struct {
	Sink
	bytes int
}

func (f splitFault) Send(ctx context.Context, e Event) error {
	for len(e.Bytes) > f.bytes {
		if err := f.Sink.Send(ctx, Event{Tokens: e.Tokens, Bytes: e.Bytes[:f.bytes]}); err != nil {
			return err
		}
		e.Bytes = e.Bytes[f.bytes:]
	}
	return f.Sink.Send(ctx, e)
}
