package proxy

import (
	"net/http/httptrace"
	"net/textproto"
	"time"
)

// clientStall is the longest write that counts as Lull's own time: the kernel
// takes an event in microseconds, so a longer one waited for a client that does
// not read.
const clientStall = 10 * time.Millisecond

// times are the moments of one attempt at the upstream; they are written on the
// transport's goroutines, under the trip's lock.
type times struct{ wanted, got, wrote, first, interim time.Time }

// timed adds the hooks that keep an attempt's moments. GotConn is the trip's own.
func (t *trip) timed(c *httptrace.ClientTrace) *httptrace.ClientTrace {
	c.GetConn = func(string) { t.stamp(&t.at.wanted) }
	interim := c.Got1xxResponse
	c.Got1xxResponse = func(code int, header textproto.MIMEHeader) error {
		t.stamp(&t.at.interim)
		return interim(code, header)
	}
	c.WroteRequest = func(httptrace.WroteRequestInfo) { t.stamp(&t.at.wrote) }
	return c
}

func (t *trip) stamp(at *time.Time) {
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	*at = now
}

// waited is how much of an attempt, from began until now, passed in waiting for
// the upstream: for a connection, and from the request's last byte to the answer's
// first, or to its headers where interim answers came before. All of it where no
// answer began.
func (t *trip) waited(began time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.at
	if a.first.IsZero() || a.got.IsZero() {
		return t.now().Sub(began)
	}
	if a.wrote.IsZero() { // the answer began before the request had ended
		a.wrote = a.got
	}
	if !a.interim.IsZero() { // the transport does not say when the answer itself began
		a.first = t.now()
	}
	return a.got.Sub(a.wanted) + max(0, a.first.Sub(a.wrote))
}

// overhead is what an exchange took beyond the time for which it was held or
// waited for somebody.
func (x *exchange) overhead() time.Duration {
	if x.rec.Arrived.IsZero() {
		return 0
	}
	return max(0, x.rec.End.Sub(x.rec.Arrived)-x.rec.Held-x.waited)
}
