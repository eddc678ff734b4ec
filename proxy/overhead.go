package proxy

import (
	"net/http/httptrace"
	"time"
)

// stall is the longest write, and the longest time between an answer's first byte
// and its header's end, that count as Lull's own: the kernel takes an event in
// microseconds and a megabyte in a few milliseconds, so a longer one waited for a
// client or an upstream that does not read, or for a header that comes in parts.
const stall = 10 * time.Millisecond

// times are the moments of one attempt at the upstream; they are written on the
// transport's goroutines, under the trip's lock.
type times struct {
	wanted, got, wrote time.Time
	first, read        time.Time // the answer's first byte came, and was read
	interim            bool      // both are an interim answer's
}

// timed adds the hooks that keep an attempt's moments. GotConn is the trip's own.
func (t *trip) timed(c *httptrace.ClientTrace) *httptrace.ClientTrace {
	c.GetConn = func(string) { t.stamp(&t.at.wanted) }
	c.WroteRequest = func(httptrace.WroteRequestInfo) { t.stamp(&t.at.wrote) }
	return c
}

func (t *trip) stamp(at *time.Time) {
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	*at = now
}

// began notes when the kernel had the answer's first bytes, or where that is not known
// when they were read.
func (t *trip) began() {
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at.first, t.at.read = now.Add(-t.clock.Age()), now
}

// waited is how much of an attempt, from began until now, passed in waiting for
// the upstream: for a connection, for it to take the request, and from the
// request's last byte to the answer's first. All of it where no answer began.
func (t *trip) waited(began time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	a, now := t.at, t.now()
	if a.first.IsZero() || a.got.IsZero() {
		return now.Sub(began)
	}
	if a.interim || now.Sub(a.read) > stall { // the transport does not tell when the last answer began
		a.first = now
	}
	// Where the answer began before the request had ended, both were waited for.
	if a.wrote.IsZero() || a.wrote.Sub(a.got) > stall {
		a.wrote = a.got
	}
	return a.got.Sub(a.wanted) + max(0, a.first.Sub(a.wrote))
}

// overhead is what an exchange took beyond the time for which it was held or
// waited for somebody, from when the kernel had the request's last byte. A Gate that
// held nothing only took its time to say so, and its caller waited for Lull.
func (x *exchange) overhead() time.Duration {
	if x.rec.Arrived.IsZero() {
		return 0
	}
	return max(0, x.lay+x.rec.End.Sub(x.rec.Arrived)-x.rec.Parked()-x.waited)
}
