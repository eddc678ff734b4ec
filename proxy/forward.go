package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lull-project/lull/proxy/arrival"
)

// staleWindow is how soon after sending a request a closed connection counts as
// one that the upstream had already given up. A later close may be an engine
// that died of the request: it must not get it twice.
const staleWindow = 250 * time.Millisecond

// send performs the round trip. A request that met a kept connection just as
// the upstream closed it is sent once more, on a new one: only if no byte of an
// answer was seen, the close came at once, and the whole body is at hand (see
// stale).
func (x *exchange) send(ctx context.Context) (*http.Response, error) {
	for attempt := 1; ; attempt++ {
		t := &trip{now: x.p.cfg.Now, window: x.p.staleWithin}
		if takesInterim(x.r) {
			t.w = x.w
		}
		began := x.p.cfg.Now()
		res, err := x.up.transport.RoundTrip(x.outgoing(httptrace.WithClientTrace(ctx, t.timed(t.trace()))))
		t.close()
		x.waited += t.waited(began)
		if err == nil {
			var head *answerHead
			x.clock, head = t.conn()
			head.restore(res)
			return res, nil
		}
		if attempt > 1 || ctx.Err() != nil || !x.body.replayable() || !t.stale(err) {
			return nil, err
		}
		x.p.replays.Add(1)
		// The others were kept as long: the next attempt must dial.
		x.up.transport.CloseIdleConnections()
	}
}

// outgoing makes the upstream's request. It has no GetBody: the transport must
// not replay a POST by itself.
func (x *exchange) outgoing(ctx context.Context) *http.Request {
	out := &http.Request{
		Method: x.r.Method,
		URL:    x.up.target(x.r.URL),
		Proto:  "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        x.header,
		Body:          x.body.open(),
		ContentLength: x.body.length(x.r.ContentLength),
		// The map that the server fills at the body's end; the transport writes it
		// after the body, which must be chunked then.
		Trailer: x.r.Trailer,
	}
	switch {
	case len(out.Trailer) > 0:
		out.ContentLength = -1
	case x.body.replayable() && len(x.body.read) == 0:
		out.Body = http.NoBody
	}
	return out.WithContext(ctx)
}

// trip watches one attempt. Its hooks run on the transport's goroutines.
type trip struct {
	reused atomic.Bool
	seen   atomic.Bool // a byte of an answer came
	now    func() time.Time
	window time.Duration // see staleWindow

	mu     sync.Mutex
	w      http.ResponseWriter // nil once the round trip is over
	sentAt time.Time           // when the connection was at hand; monotonic
	at     times               // of the injected clock
	clock  *arrival.Clock      // of the connection at hand
	head   *answerHead         // likewise
}

func (t *trip) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) {
			t.reused.Store(i.Reused)
			t.mu.Lock()
			defer t.mu.Unlock()
			t.sentAt = time.Now()
			t.at.got = t.now()
			t.clock, t.head = arrival.Of(i.Conn), headOf(i.Conn)
			t.head.expect()
		},
		GotFirstResponseByte: func() { t.seen.Store(true); t.began() },
		Got1xxResponse:       t.interim,
	}
}

// interim passes an interim response on. The transport waits for it, and the
// handler waits for the transport, so nobody else writes.
func (t *trip) interim(code int, header textproto.MIMEHeader) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at.interim = true
	if t.w == nil || code == http.StatusContinue {
		return nil
	}
	h := t.w.Header()
	dropHop(http.Header(header))
	for k, v := range header {
		h[k] = v
	}
	t.w.WriteHeader(code)
	clear(h) // WriteHeader leaves them for the next answer
	return nil
}

// conn is what is known of the connection that the trip took.
func (t *trip) conn() (*arrival.Clock, *answerHead) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.clock, t.head
}

// close ends the trip's right to write.
func (t *trip) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.w = nil
}

// stale says that err is the transport's word for a kept connection which the
// upstream had closed before it answered: its own error for that, an end of file, a
// reset, or a write that failed for one of them, without a byte of an answer and within
// the window. Nothing else is: after any other error the upstream may have had the
// request.
func (t *trip) stale(err error) bool {
	if !t.reused.Load() || t.seen.Load() {
		return false
	}
	t.mu.Lock()
	since := time.Since(t.sentAt)
	t.mu.Unlock()
	if since > t.window {
		return false
	}
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) ||
		// Of a write: the second where the transport had read the end and closed.
		errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed) ||
		// net/http does not export this one.
		strings.Contains(err.Error(), "server closed idle connection")
}
