package sidecar

import (
	"io"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"time"
)

// sayAgain is how often a lack of file descriptors is said.
const sayAgain = 10 * time.Second

// LibraryLog takes the lines that net/http prints by itself into log: through its
// server's ErrorLog and, for its transport, through the standard logger. They are
// debugging but for one: without file descriptors clients wait unseen. The
// transport quotes what a server sent unasked; an answer's text is in no log.
func LibraryLog(log *slog.Logger, now func() time.Time) io.Writer {
	return &libraryLog{log: log, now: now}
}

type libraryLog struct {
	log *slog.Logger
	now func() time.Time

	mu   sync.Mutex
	said time.Time
}

// Write takes one line; it never fails.
func (l *libraryLog) Write(line []byte) (int, error) {
	text, _, _ := strings.Cut(strings.TrimSpace(string(line)), " starting with ")
	switch {
	case !strings.Contains(text, syscall.EMFILE.Error()) && !strings.Contains(text, syscall.ENFILE.Error()):
		l.log.Debug("net/http", "said", text)
	case l.due():
		l.log.Warn("no file descriptors are left: new connections wait until others end; raise the limit (ulimit -n, LimitNOFILE=), two for each open request", "said", text)
	}
	return len(line), nil
}

func (l *libraryLog) due() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if !l.said.IsZero() && now.Sub(l.said) < sayAgain {
		return false
	}
	l.said = now
	return true
}
