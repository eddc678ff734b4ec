package trainer

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxQueued bounds the lines that wait for a trainer that does not read. Kinds
// that replace each other take one place each.
const maxQueued = 64

// patience is how long a line may lie in the queue of a TLS connection, which
// always queues, before Send says ErrLate.
const patience = 50 * time.Millisecond

// queued is a line that has not been begun.
type queued struct {
	kind  string // the message's type
	msg   Message
	bytes []byte
}

// outbox writes a session's lines in order. put writes from the caller's own
// goroutine when nothing waits and the socket takes the line; otherwise flush,
// a goroutine of the session, writes when the socket can take more.
type outbox struct {
	conn net.Conn
	raw  syscall.RawConn // nil for TLS, where only flush writes

	mu     sync.Mutex
	tail   []byte // what is left of a line that was begun
	lines  []queued
	since  time.Time // when the socket last took something, while anything waits
	closed bool
	kick   chan struct{}
}

func newOutbox(conn net.Conn) *outbox {
	o := &outbox{conn: conn, kick: make(chan struct{}, 1)}
	if u, ok := conn.(*net.UnixConn); ok {
		if raw, err := u.SyscallConn(); err == nil {
			o.raw = raw
		}
	}
	return o
}

// put sends or queues one line. It never waits for the peer.
func (o *outbox) put(m Message) error {
	line, err := Encode(m)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return ErrGone
	}
	if o.raw != nil && len(o.tail) == 0 && len(o.lines) == 0 {
		n, err := o.writeNow(line)
		if err != nil {
			return err
		}
		if n == len(line) {
			return nil
		}
		o.since = time.Now()
		if n == 0 {
			o.lines = append(o.lines, queued{m.Type(), m, line})
		} else {
			o.tail = line[n:]
		}
		o.wake()
		return ErrLate
	}
	return o.enqueue(m, line)
}

// enqueue keeps a line behind those that wait. mu is held.
func (o *outbox) enqueue(m Message, line []byte) error {
	idle := len(o.tail) == 0 && len(o.lines) == 0
	if idle {
		o.since = time.Now()
	}
	if i := o.replaceable(m); i >= 0 {
		m, line = inherit(o.lines[i].msg, m, line)
		o.lines = append(o.lines[:i], o.lines[i+1:]...)
	}
	if len(o.lines) >= maxQueued {
		return ErrFull
	}
	o.lines = append(o.lines, queued{m.Type(), m, line})
	o.wake()
	if o.raw != nil || time.Since(o.since) > patience {
		return ErrLate
	}
	return nil
}

// replaceable finds the waiting line that m makes pointless: the newest budget,
// pace, refusal or ping is the one that counts.
func (o *outbox) replaceable(m Message) int {
	class := func(kind string) string {
		switch kind {
		case "budget", "ping", "refused":
			return kind
		case "pace", "yield":
			return "pace"
		}
		return ""
	}
	want := class(m.Type())
	for i, l := range o.lines {
		if want != "" && class(l.kind) == want {
			return i
		}
	}
	return -1
}

// inherit keeps the answer to a floor request: a budget that replaces an unsent
// one with reason floor takes that reason over, and hands it on when it is
// replaced itself.
func inherit(old, next Message, line []byte) (Message, []byte) {
	was, ok := old.(Budget)
	now, also := next.(Budget)
	if !ok || !also || was.Reason != "floor" {
		return next, line
	}
	now.Reason = was.Reason
	b, err := Encode(now)
	if err != nil {
		return next, line
	}
	return now, b
}

func (o *outbox) wake() {
	select {
	case o.kick <- struct{}{}:
	default:
	}
}

// waited is for how long the socket has taken nothing, 0 when nothing waits.
func (o *outbox) waited() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.tail) == 0 && len(o.lines) == 0 {
		return 0
	}
	return time.Since(o.since)
}

// writeNow writes what the socket takes at once; 0 and no error when it takes
// nothing. Control, not Write: it must not wait for flush, which may be waiting
// for the socket. mu is held.
func (o *outbox) writeNow(b []byte) (int, error) {
	var n int
	var err error
	ctl := o.raw.Control(func(fd uintptr) { n, err = sendNow(fd, b) })
	if ctl != nil {
		return 0, ErrGone
	}
	return n, err
}

func sendNow(fd uintptr, b []byte) (int, error) {
	for {
		n, err := unix.SendmsgN(int(fd), b, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return 0, nil
		case err != nil:
			return 0, ErrGone
		}
		return n, nil
	}
}

// close makes put say ErrGone and ends flush.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.closed = true
		close(o.kick)
	}
}

// flush writes what waits until the outbox and its connection are closed.
func (o *outbox) flush() {
	for range o.kick {
		if o.raw != nil {
			_ = o.raw.Write(o.drain)
		} else {
			o.flushTLS()
		}
	}
}

// drain writes all it can; false asks the runtime to wait until fd takes more.
func (o *outbox) drain(fd uintptr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.closed {
		if len(o.tail) == 0 {
			if len(o.lines) == 0 {
				return true
			}
			o.tail = o.lines[0].bytes
			o.lines = o.lines[1:]
		}
		n, err := sendNow(fd, o.tail)
		if err != nil {
			return true // the session's reader sees the end of the connection
		}
		if n == 0 {
			return false
		}
		o.tail = o.tail[n:]
		o.since = time.Now()
	}
	return true
}

// flushTLS writes line by line; the session's end closes the connection and so
// ends a write that waits.
func (o *outbox) flushTLS() {
	for {
		o.mu.Lock()
		if o.closed || len(o.lines) == 0 {
			o.mu.Unlock()
			return
		}
		line := o.lines[0].bytes
		o.lines = o.lines[1:]
		o.tail = line // being written: put queues behind it
		o.mu.Unlock()
		_, err := o.conn.Write(line)
		o.mu.Lock()
		o.tail = nil
		o.since = time.Now()
		o.mu.Unlock()
		if err != nil {
			return
		}
	}
}
