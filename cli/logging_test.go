package cli

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func anHour() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC) }

// stuck is a reader of the log that reads nothing until it is let go.
type stuck struct {
	mu  sync.Mutex
	got bytes.Buffer
}

func (s *stuck) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got.Write(p)
}

// The test itself would hang where a log that nobody reads held up who logs.
func TestLogThatNobodyReadsHoldsUpNobodyAndCountsWhatItLost(t *testing.T) {
	defer goleak.VerifyNone(t)
	out := &stuck{}
	out.mu.Lock()
	w := newLogWriter(out, anHour)
	log := slog.New(slog.NewTextHandler(w, nil))
	const n = 50_000
	for i := range n {
		log.Info("line", "i", i)
	}
	if w.close(0) {
		t.Error("closed as if all were written")
	}
	w.mu.Lock()
	waiting := w.bytes
	w.mu.Unlock()
	if waiting > mostLogBytes {
		t.Errorf("%d bytes wait, want at most %d", waiting, mostLogBytes)
	}
	out.mu.Unlock()
	if !w.close(time.Minute) {
		t.Fatal("not written in a minute")
	}
	lines := strings.Split(strings.TrimSpace(out.got.String()), "\n")
	last := lines[len(lines)-1]
	m := regexp.MustCompile(`^time=2026-01-02T03:04:05.006Z level=WARN msg="log lines dropped: the log was not read in time" dropped=(\d+)$`).FindStringSubmatch(last)
	if m == nil {
		t.Fatalf("the last line is %q, want the count of those dropped", last)
	}
	dropped, _ := strconv.Atoi(m[1])
	if kept := len(lines) - 1; kept == 0 || kept+dropped != n {
		t.Errorf("%d lines kept and %d dropped, want %d together", kept, dropped, n)
	}
	for i, line := range lines[:len(lines)-1] {
		if !strings.HasSuffix(line, fmt.Sprint(" i=", i)) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
}

func TestLogGoesOnAfterTheCountWasSaid(t *testing.T) {
	defer goleak.VerifyNone(t)
	r, pipe := io.Pipe()
	w := newLogWriter(pipe, anHour)
	big := bytes.Repeat([]byte("x"), mostLogBytes/2)
	big[len(big)-1] = '\n'
	for range 5 {
		_, _ = w.Write(big)
	}
	read := make(chan int)
	go func() { // ends when the pipe does
		n, after := 0, false
		buf := make([]byte, 64<<10)
		for {
			k, err := r.Read(buf)
			if err != nil {
				read <- n
				return
			}
			n += bytes.Count(buf[:k], []byte("\n"))
			if !after && bytes.Contains(buf[:k], []byte("dropped=")) {
				after = true
				_, _ = w.Write([]byte("after\n"))
				w.close(0)
			}
		}
	}()
	<-w.done
	_ = pipe.Close()
	if n := <-read; n < 4 || n > 5 { // two or three of them, the count, and the line after it
		t.Errorf("%d lines came, want those that fit, the count and the one after it", n)
	}
}

func TestLogIsWrittenInOrderBeforeTheEnd(t *testing.T) {
	defer goleak.VerifyNone(t)
	out := &stuck{}
	w := newLogWriter(out, anHour)
	for i := range 1000 {
		fmt.Fprintln(w, i)
	}
	if !w.close(time.Minute) || !w.close(0) {
		t.Error("close says that something is left")
	}
	if lines := strings.Fields(out.got.String()); len(lines) != 1000 || lines[999] != "999" {
		t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
	}
	if n, err := w.Write([]byte("late\n")); n != 5 || err != nil {
		t.Errorf("a line after the end: %d, %v, want it taken and dropped", n, err)
	}
}
