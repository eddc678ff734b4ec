package faults

import (
	"context"
	"time"
)

// slowClose keeps the answer open for d after its last byte.
func slowClose(d time.Duration) wrapper {
	return func(next Sink) Sink { return slowCloseFault{next, d} }
}

type slowCloseFault struct {
	Sink
	d time.Duration
}

func (f slowCloseFault) End(ctx context.Context) error {
	if err := wait(ctx, f.d); err != nil {
		return err
	}
	return f.Sink.End(ctx)
}
