package faults

import (
	"context"
	"errors"
	"time"
)

// Event is one piece of an answer that is written and flushed alone.
type Event struct {
	// Tokens is how many tokens the answer has once this event is out.
	Tokens int
	Bytes  []byte
}

// Sink is where an answer goes: Start once before its first byte, Send for each
// event, End once after the last. An error ends the answer there.
type Sink interface {
	Start(ctx context.Context) error
	Send(ctx context.Context, e Event) error
	End(ctx context.Context) error
}

// ErrReset asks the server to reset the connection. The reset fault returns it.
var ErrReset = errors.New("fault: reset the connection")

// ErrEngine asks the server to tell the client of an engine error and to end
// the answer. The error fault returns it.
var ErrEngine = errors.New("fault: the emulated engine broke down")

// wait returns after d, or with the cause when ctx ends first.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
