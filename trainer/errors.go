package trainer

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrGone is returned by Send on a session that has ended. The trainer's bytes
// count until the device shows them gone.
var ErrGone = errors.New("the session has ended; its bytes count until the device shows them gone")

// ErrLate is returned by Send when the trainer does not read its socket. The
// line is kept and goes out when it reads again, unless a newer one of its kind
// has replaced it by then.
var ErrLate = errors.New("the trainer does not read its socket; the newest line of each kind is kept for it")

// ErrFull is returned by Send when the trainer does not read and too many lines
// of a kind that cannot be replaced wait for it; the line is dropped.
var ErrFull = errors.New("the trainer does not read its socket and its queue is full; the line is dropped")

// Error says what was being done and for how long. Its Unwrap is one of the
// sentinels above or the system's error.
type Error struct {
	// Op is what was done: "send budget", "listen /run/lull/lull.sock".
	Op string
	// Epoch is the order's, session<<32 | count; 0 where there is none.
	Epoch uint64
	// Waited is for how long the socket has taken nothing; 0 where that is not
	// the trouble.
	Waited time.Duration
	Err    error
}

// Error prints "trainer: send budget epoch=7.3 for 12ms: cause".
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("trainer: " + e.Op)
	if e.Epoch != 0 {
		fmt.Fprintf(&b, " epoch=%d.%d", e.Epoch>>32, uint32(e.Epoch))
	}
	if e.Waited > 0 {
		fmt.Fprintf(&b, " for %v", e.Waited)
	}
	return b.String() + ": " + e.Err.Error()
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// LineError is a line that is no valid message: What is the message's type (or
// "line"), Where the field or place, Rule what was seen and wanted. They are the
// fields of the error line that answers it.
type LineError struct{ What, Where, Rule string }

// Error prints "trainer: refuse budget bytes: rule; an error line answers it".
func (e *LineError) Error() string {
	return fmt.Sprintf("trainer: refuse %s %s: %s; an error line answers it", e.What, e.Where, e.Rule)
}

func (e *LineError) line() ErrorLine { return ErrorLine(*e) }
