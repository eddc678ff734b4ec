package sidecar

import (
	"sync"
	"time"
)

// limiter lets the first lines of each interval into the log and counts the
// rest: a trainer that sends garbage must not fill the disk.
type limiter struct {
	most  int
	every time.Duration
	now   func() time.Time

	mu      sync.Mutex
	began   time.Time
	passed  int
	dropped int
}

// allow says whether a line may pass, and how many were dropped since the last
// that did.
func (l *limiter) allow() (dropped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := l.now(); now.Sub(l.began) >= l.every {
		l.began, l.passed = now, 0
	}
	if l.passed >= l.most {
		l.dropped++
		return 0, false
	}
	l.passed++
	dropped, l.dropped = l.dropped, 0
	return dropped, true
}
