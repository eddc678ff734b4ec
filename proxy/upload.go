package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// errUploadIdle ends an upload in which nothing moved.
var errUploadIdle = errors.New("no byte from the client within proxy.idle_timeout")

// upload is a request's body as the client sends it. Each read may take the idle
// limit and at most a quarter more; the whole upload as long as it flows. A
// transport may read on after its request has ended: what it does then no longer
// touches the connection.
type upload struct {
	body  io.Reader
	rc    *http.ResponseController
	limit time.Duration
	ends  func() // called at the body's end, when its trailers have come; may be nil

	mu      sync.Mutex
	until   time.Time // the read deadline that is set; zero for none
	reading bool
	whole   bool // read to its end
	idle    bool // the idle limit ended it
	ended   bool
}

func (u *upload) Read(p []byte) (int, error) {
	u.extend(time.Now())
	n, err := u.body.Read(p)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.reading = false
	if err == nil {
		return n, nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		u.idle, err = true, fmt.Errorf("%w: %w", errUploadIdle, err)
	}
	if u.whole = err == io.EOF; u.whole && u.ends != nil {
		u.ends()
	}
	u.clear()
	return n, err
}

// idled says that the idle limit ended the upload. The server ends the request's
// context from inside the read that failed, so this may be asked before that
// read has returned.
func (u *upload) idled() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.idle || u.reading && !u.until.IsZero() && !time.Now().Before(u.until)
}

// extend sets a later deadline, but only when a quarter of the limit has gone by:
// setting one wakes the runtime's poller. The errors of deadlines are those of
// writers that have none.
func (u *upload) extend(now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.reading = true
	if !u.ended && u.until.Sub(now) < u.limit {
		u.until = now.Add(u.limit + u.limit/4)
		_ = u.rc.SetReadDeadline(u.until)
	}
}

// clear takes the deadline off the connection. u.mu is held.
func (u *upload) clear() {
	if !u.ended && !u.until.IsZero() {
		u.until = time.Time{}
		_ = u.rc.SetReadDeadline(time.Time{})
	}
}

// pause takes the deadline off until the next read: a request that is held is
// not idle.
func (u *upload) pause() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.clear()
}

// end gives the connection back to its server, which drains what is left of the
// body: that has one limit more, or none after an idle one.
func (u *upload) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.ended, u.whole:
	case u.idle:
		_ = u.rc.SetReadDeadline(time.Now())
	default:
		_ = u.rc.SetReadDeadline(time.Now().Add(u.limit))
	}
	u.ended = true
}

// bodyMemory is what the bodies of all requests may take together while they are
// read whole.
type bodyMemory struct {
	limit atomic.Int64 // bytes
	used  atomic.Int64
}

// take reserves n bytes, or answers false and reserves none.
func (m *bodyMemory) take(n int64) bool {
	if m.used.Add(n) <= m.limit.Load() {
		return true
	}
	m.used.Add(-n)
	return false
}

// give returns what was taken.
func (m *bodyMemory) give(n int64) { m.used.Add(-n) }
