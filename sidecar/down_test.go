package sidecar

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/handover"
)

// TestEngineThatDoesNotAnswerIsDeadOnlyOnceNobodyListens: until then its bytes are there.
func TestEngineThatDoesNotAnswerIsDeadOnlyOnceNobodyListens(t *testing.T) {
	l := &loop{ctx: t.Context(), clock: time.Now, inputs: make(chan input, 64), requests: newRequests()}
	e := &engineDriver{id: "llm", loop: l, log: slog.New(slog.DiscardHandler), truth: &residency{}, up: true}
	mute := fmt.Errorf("%w: %w", engine.ErrUnreachable, os.ErrDeadlineExceeded)
	gone := fmt.Errorf("%w: %w", engine.ErrUnreachable, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
	for i, c := range []struct {
		err  error
		want []handover.Event
	}{
		{mute, nil}, {mute, nil},
		{mute, []handover.Event{handover.EngineDown{Engine: "llm"}}},
		{mute, nil},
		{gone, []handover.Event{handover.EngineDown{Engine: "llm", Dead: true}}},
		{gone, nil}, {mute, nil}, {gone, nil},
		{nil, []handover.Event{handover.EngineUp{Engine: "llm"}}},
		{gone, []handover.Event{handover.EngineDown{Engine: "llm", Dead: true}}},
	} {
		if c.err == nil {
			e.back(t.Context())
		} else {
			e.missed(t.Context(), c.err)
		}
		var got []handover.Event
		for len(l.inputs) > 0 {
			if ev := (<-l.inputs).event(0); ev != (handover.EngineUnread{Engine: "llm"}) {
				got = append(got, ev)
			}
		}
		if fmt.Sprintf("%#v", got) != fmt.Sprintf("%#v", c.want) {
			t.Errorf("%d, after %v: got %#v, want %#v", i, c.err, got, c.want)
		}
	}
}
