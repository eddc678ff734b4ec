package faults

import (
	"context"
	"time"
)

// latency holds the whole answer, headers too, for d.
func latency(d time.Duration) wrapper {
	return func(next Sink) Sink { return latencyFault{next, d} }
}

type latencyFault struct {
	Sink
	d time.Duration
}

func (f latencyFault) Start(ctx context.Context) error {
	if err := wait(ctx, f.d); err != nil {
		return err
	}
	return f.Sink.Start(ctx)
}
