package arrival

import (
	"crypto/tls"
	"net"
	"sync/atomic"
	"time"
)

// Clock knows when what was last read of a connection had come. A nil one knows
// nothing.
type Clock struct {
	born  time.Time    // with both clocks
	ahead atomic.Int64 // wall clock minus monotonic clock since born, ns, at the last read
	came  atomic.Int64 // monotonic ns since born; 0: not known
	done  atomic.Int64 // likewise
	looks atomic.Bool  // reads of one byte only look whether the other end is there
}

func newClock(now time.Time) *Clock { return &Clock{born: now} }

// jitter is how far apart the two clocks of one time.Time may seem to go: they are
// read one after the other.
const jitter = 100 * time.Microsecond

// read notes a read whose last byte the kernel stamped, in ns since 1970; 0 for a read
// without a stamp. It returned when so long had passed since the clock's birth, by the
// monotonic clock, and the wall clock showed wall, in ns since 1970.
func (c *Clock) read(since time.Duration, wall, stamp int64) {
	ahead := wall - c.born.UnixNano() - int64(since)
	moved := time.Duration(ahead - c.ahead.Swap(ahead))
	lay := time.Duration(wall - stamp)
	if stamp == 0 || lay < 0 || moved > jitter || moved < -jitter {
		c.came.Store(0)
		return
	}
	c.came.Store(max(1, int64(since-lay)))
}

// Age is how long ago the last byte of the last read came, or how long ago Done was
// called, if that was later. It is 0 where that is not known.
func (c *Clock) Age() time.Duration {
	if c == nil {
		return 0
	}
	came := c.came.Load()
	if came == 0 {
		return 0
	}
	return max(0, time.Since(c.born)-time.Duration(max(came, c.done.Load())))
}

// Done says that all requests that had come are answered: what came earlier and is
// read next waited for that.
func (c *Clock) Done() {
	if c != nil {
		c.looks.Store(false)
		c.done.Store(int64(time.Since(c.born)))
	}
}

// Served says that a request has been read whole. Until Done a read of one byte is
// net/http's, which looks so whether its client has left, and gives up looking when it
// gets the first byte of a next request. Here it gets none: it ends when the other end
// has closed, whatever came before that, or by its deadline.
func (c *Clock) Served() {
	if c != nil {
		c.looks.Store(true)
	}
}

// Of is the clock of a connection, below TLS if need be; nil where it has none.
func Of(conn net.Conn) *Clock {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	if c, ok := conn.(interface{ Arrivals() *Clock }); ok {
		return c.Arrivals()
	}
	return nil
}

// Listen makes a listener's connections keep stamps. The listener asks for them too:
// the kernel begins with the first socket that does, a moment later, and a connection's
// first bytes may come before it is accepted.
func Listen(l net.Listener) net.Listener {
	ask(l)
	return listener{l}
}

type listener struct{ net.Listener }

// Accept makes it a net.Listener.
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Stamped(c), nil
}
