package engine

import (
	"errors"
	"fmt"
)

var (
	// ErrUnreachable: nobody answered at the server's address, or not in time.
	// Observe and SetBound wrap it; the server may be down.
	ErrUnreachable = errors.New("no answer")
	// ErrNotReady: the server answered that it is starting (503). Observe wraps it.
	ErrNotReady = errors.New("not ready")
	// ErrStaleEpoch: the server has a bound of a later epoch and kept it. SetBound
	// wraps it; another sidecar may be writing the same engine.
	ErrStaleEpoch = errors.New("stale epoch")
)

// StatusError is an HTTP answer that was not 200.
type StatusError struct {
	// Code is the HTTP status.
	Code int
	// Body is what the server says of itself: the message of an OpenAI-shaped error,
	// else the beginning of the answer. Word is such an error's code, where it is one
	// word.
	Body, Word string
}

// Error prints the status and the beginning of the body.
func (e *StatusError) Error() string {
	return fmt.Sprintf("got %d %q, want 200", e.Code, e.Body)
}

// Is makes a 503 match ErrNotReady.
func (e *StatusError) Is(target error) bool { return target == ErrNotReady && e.Code == 503 }

// statusOf is the HTTP status inside err, 0 if there is none.
func statusOf(err error) int {
	var s *StatusError
	if errors.As(err, &s) {
		return s.Code
	}
	return 0
}
