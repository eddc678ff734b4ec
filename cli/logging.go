package cli

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	// mostLogBytes bounds what waits for a reader of the log: minutes of an
	// ordinary log, and nothing against the memory that is lent.
	mostLogBytes = 1 << 20
	// logFlush is how long the end of the process waits for the log.
	logFlush = time.Second
)

// newLogger logs to stderr in text, and never waits for whoever reads it. Call
// the second value before the process ends: what waits still goes out then.
func newLogger(level string) (log *slog.Logger, flush func()) {
	var l slog.Level
	_ = l.UnmarshalText([]byte(level)) // Validate has checked it
	out := newLogWriter(os.Stderr, time.Now)
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: l})), func() { out.close(logFlush) }
}

// logWriter takes whole lines at once and writes them from a goroutine of its
// own: a terminal that is stopped, or a pipe that nobody reads, must not hold up
// the loop that logs. What does not fit is dropped, and a line says how much.
type logWriter struct {
	out io.Writer
	now func() time.Time

	mu      sync.Mutex
	lines   [][]byte
	bytes   int // of lines
	dropped int
	closed  bool
	kick    chan struct{}
	done    chan struct{}
}

func newLogWriter(out io.Writer, now func() time.Time) *logWriter {
	w := &logWriter{out: out, now: now, kick: make(chan struct{}, 1), done: make(chan struct{})}
	go w.run() // ends after close, when what waits is written
	return w
}

// Write takes one line, or drops it; it never waits and never fails.
func (w *logWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// After a drop nothing fits until the count was said: the log stays in order.
	if w.closed || w.dropped > 0 || w.bytes+len(line) > mostLogBytes {
		w.dropped++
		return len(line), nil
	}
	w.lines = append(w.lines, slices.Clone(line)) // slog uses it again
	w.bytes += len(line)
	w.wake()
	return len(line), nil
}

func (w *logWriter) wake() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

func (w *logWriter) run() {
	defer close(w.done)
	for range w.kick {
		for line := w.next(); line != nil; line = w.next() {
			_, _ = w.out.Write(line) // there is nowhere to say that the log is broken
		}
	}
}

// next is the oldest line, or after all of them the count of those dropped; nil
// when there is neither.
func (w *logWriter) next() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lines) > 0 {
		line := w.lines[0]
		w.lines[0] = nil
		w.lines = w.lines[1:]
		w.bytes -= len(line)
		return line
	}
	if w.dropped == 0 {
		return nil
	}
	line := fmt.Appendf(nil, "time=%s level=WARN msg=\"log lines dropped: the log was not read in time\" dropped=%d\n",
		w.now().Format("2006-01-02T15:04:05.000Z07:00"), w.dropped)
	w.dropped = 0
	return line
}

// close writes what waits, for at most that long, and reports whether all of it
// went out. Later lines are dropped.
func (w *logWriter) close(limit time.Duration) bool {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		w.wake()
		close(w.kick)
	}
	w.mu.Unlock()
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-w.done:
	case <-late.C:
	}
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}
