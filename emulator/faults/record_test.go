package faults

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// record is a Sink that writes down what reaches it and when.
type record struct {
	began time.Time
	log   []string
}

func (r *record) note(format string, args ...any) error {
	r.log = append(r.log, fmt.Sprintf("%v ", time.Since(r.began))+fmt.Sprintf(format, args...))
	return nil
}

func (r *record) Start(context.Context) error { return r.note("start") }
func (r *record) Send(_ context.Context, e Event) error {
	return r.note("%d:%s", e.Tokens, e.Bytes)
}
func (r *record) End(context.Context) error { return r.note("end") }

// answer sends three one-token events through the faults that the text names,
// with a client that leaves after ten seconds, and returns what came out.
func answer(t *testing.T, text string) (got string, err error) {
	t.Helper()
	set, parseErr := Parse(text)
	if parseErr != nil {
		t.Fatal(parseErr)
	}
	synctest.Test(t, func(*testing.T) {
		ctx, cancel := context.WithTimeoutCause(context.Background(), 10*time.Second, fmt.Errorf("the client left"))
		defer cancel()
		r := &record{began: time.Now()}
		err = send(ctx, set.Wrap(r))
		got = strings.Join(r.log, ", ")
	})
	return got, err
}

func send(ctx context.Context, sink Sink) error {
	if err := sink.Start(ctx); err != nil {
		return err
	}
	for n, text := range []string{"ab", "cdé", "f"} {
		if err := sink.Send(ctx, Event{Tokens: n + 1, Bytes: []byte(text)}); err != nil {
			return err
		}
	}
	return sink.End(ctx)
}
