package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// errIdle is the cause of a request cancelled by its idle limit.
var errIdle = errors.New("no byte from the upstream within proxy.idle_timeout")

// idleTicks is how often in one limit a body is looked at; a read is ended after
// one limit and at most one tick more.
const idleTicks = 4

// idleBody cancels its request when one read takes longer than the limit. Time
// between reads does not count: it is the client's. Reads only count themselves,
// and one slow timer looks at the count: setting a timer for each read would
// wake the runtime's poller every time, which costs more than the read.
type idleBody struct {
	io.ReadCloser
	reads  atomic.Uint64 // begun and ended; odd inside a read
	cancel context.CancelCauseFunc
	period time.Duration

	mu     sync.Mutex // guards what follows; ticks take it
	timer  *time.Timer
	closed bool
	early  func() // called at the first tick
	last   uint64
	still  int // ticks for which the same read was seen
}

// newIdleBody watches b until it is closed. early, if any, runs once, when
// headerGrace has passed.
func newIdleBody(b io.ReadCloser, limit time.Duration, cancel context.CancelCauseFunc, early func()) *idleBody {
	i := &idleBody{ReadCloser: b, cancel: cancel, period: max(limit/idleTicks, 1), early: early}
	first := i.period
	if early != nil {
		first = headerGrace
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.timer = time.AfterFunc(first, i.tick)
	return i
}

func (b *idleBody) Read(p []byte) (int, error) {
	b.reads.Add(1)
	n, err := b.ReadCloser.Read(p)
	b.reads.Add(1)
	return n, err
}

// Close ends the watch.
func (b *idleBody) Close() error {
	b.mu.Lock()
	b.closed = true
	b.timer.Stop()
	b.mu.Unlock()
	return b.ReadCloser.Close()
}

// tick runs on the timer's goroutine.
func (b *idleBody) tick() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	if b.early != nil {
		b.early()
		b.early = nil
	}
	now := b.reads.Load()
	if now%2 == 0 || now != b.last {
		b.last, b.still = now, 0
	} else if b.still++; b.still >= idleTicks {
		b.cancel(errIdle)
		return
	}
	b.timer.Reset(b.period)
}

// headerGrace is how long an answer's header waits for the first bytes of its
// body, so that both leave in one write. After it the header goes alone: clients
// may limit their wait for it.
const headerGrace = 2 * time.Millisecond

// headerFlush sends the header alone when the body is late.
type headerFlush struct {
	rc   *http.ResponseController
	mu   sync.Mutex
	done bool
}

// flush runs on a timer's goroutine while the relay waits in its first read.
func (f *headerFlush) flush() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.done {
		f.done = true
		_ = f.rc.Flush() // a client that left shows at the first write
	}
}

// stop ends the right to flush; after it only the relay writes.
func (f *headerFlush) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done = true
}
