package proxy

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
)

// bench is a proxy whose upstreams are in the same bubble: connections are pipes,
// and the clock is the bubble's.
type bench struct {
	t     *testing.T
	p     *Proxy
	mu    sync.Mutex
	polls []string // what checks asked, as host and path
	// poll is the status of a check's answer, 0 for none; answer that of a request's.
	poll, answer atomic.Int64
	dial         atomic.Pointer[func(ctx context.Context) error] // nil means nothing fails
}

func newBench(t *testing.T, cfg Config) *bench {
	b := &bench{t: t, p: New(cfg, nil, nil)}
	b.poll.Store(200)
	b.answer.Store(200)
	conns := make(pipes)
	s := &http.Server{Handler: b, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = s.Serve(conns) }() // ends with Close
	b.p.upstreams[0].transport.DialContext = func(ctx context.Context, _, addr string) (net.Conn, error) {
		if dial := b.dial.Load(); dial != nil {
			if err := (*dial)(ctx); err != nil {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
			}
		}
		ours, theirs := net.Pipe()
		conns <- theirs
		return ours, nil
	}
	t.Cleanup(func() { b.p.Close(); s.Close() })
	return b
}

// pipes is the listener at their other ends.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (b *bench) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("X-Request-Id") != "" { // Lull's own questions have none
		w.WriteHeader(int(b.answer.Load()))
		return
	}
	b.mu.Lock()
	b.polls = append(b.polls, r.Host+r.URL.Path)
	b.mu.Unlock()
	poll := int(b.poll.Load())
	if poll == 0 {
		<-r.Context().Done()
		return
	}
	w.WriteHeader(poll)
}

// check asks n times and wants the last to say what serves.
func (b *bench) check(n int, serving string) {
	b.t.Helper()
	for range n {
		b.p.Check(b.t.Context())
	}
	if got := b.p.Serving(); got != serving {
		b.t.Errorf("serving %q, want %q; %+v", got, serving, b.p.Health())
	}
}

// request sends one to a path and wants its upstream's status.
func (b *bench) request(path string) {
	b.t.Helper()
	w := httptest.NewRecorder()
	b.p.ServeHTTP(w, httptest.NewRequestWithContext(b.t.Context(), http.MethodPost, path, strings.NewReader("{}")))
	if want := int(b.answer.Load()); w.Code != want {
		b.t.Errorf("%s: got %d, want %d", path, w.Code, want)
	}
}

func (b *bench) problem(i int, want string) {
	b.t.Helper()
	if got := b.p.Health()[i].Problem; got != want {
		b.t.Errorf("problem %q, want %q", got, want)
	}
}

// refused is a dial at whose port nobody listens, silent one that nobody answers.
var (
	refused = func(context.Context) error { return syscall.ECONNREFUSED }
	silent  = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
)

// inBubble runs f with a proxy to the upstreams a and b.
func inBubble(t *testing.T, failover bool, f func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.Failover = failover
		cfg.Upstreams = []Upstream{{Name: "a", URL: "http://a"}, {Name: "b", URL: "http://b"}}
		f(newBench(t, cfg))
	})
}

func TestSilenceDoesNotTakeALoneUpstreamOut(t *testing.T) {
	inBubble(t, false, func(b *bench) {
		b.check(1, "a")
		b.poll.Store(0) // a long prefill holds its event loop
		b.check(5, "a")
		b.dial.Store(&refused)
		b.p.Close() // a server's death closes its connections
		b.check(1, "")
		b.problem(0, "GET /v1/models: dial tcp: connection refused")
	})
}

func TestLoneUpstreamIsDownByChecksAnsweredWith5xx(t *testing.T) {
	inBubble(t, false, func(b *bench) {
		b.check(1, "a")
		b.poll.Store(503)
		b.check(2, "a")
		b.poll.Store(0) // neither a failure nor a success
		b.check(1, "a")
		b.poll.Store(503)
		b.check(1, "")
		b.problem(0, "GET /v1/models: the upstream answered Service Unavailable")
	})
}

func TestHostThatTakesNoConnectionIsDownAfterThreeChecks(t *testing.T) {
	inBubble(t, false, func(b *bench) {
		b.check(1, "a")
		b.p.Close()
		b.dial.Store(&silent)
		b.check(2, "a")
		b.check(1, "")
		b.problem(0, "GET /v1/models: no connection within 2s")
	})
}

func TestAnyAnswerBelow500SaysThatTheUpstreamServes(t *testing.T) {
	for path, status := range map[string]int{chatPath: 200, "/v1/models": 404} { // interpreted and passed
		inBubble(t, false, func(b *bench) {
			b.poll.Store(0)
			b.answer.Store(500)
			b.check(1, "")
			b.problem(0, "GET /v1/models: no answer within 2s")
			b.request(path)
			b.check(1, "") // a 500 says nothing
			b.answer.Store(int64(status))
			b.request(path)
			if got := b.p.Serving(); got != "a" {
				t.Errorf("%s answered with %d: serving %q, want a at once", path, status, got)
			}
			b.dial.Store(&refused)
			b.p.Close()
			b.check(2, "") // the first is spared: it has answered
			b.dial.Store(nil)
			b.request(path)
			if up, down := b.p.Check(b.t.Context()); !slices.Equal(up, []string{"a"}) || down != nil {
				t.Errorf("%s answered again: up %v, down %v; want a up", path, up, down)
			}
		})
	}
}

func TestSilenceMovesRequestsOnOnlyWhileNoAnswersCome(t *testing.T) {
	inBubble(t, true, func(b *bench) {
		b.check(1, "a")
		b.poll.Store(0)
		for range 5 {
			b.request(chatPath)
			b.check(1, "a")
		}
		for range 5 {
			b.p.upstreams[0].health.goesOn(200) // a stream that goes on
			b.check(1, "a")
		}
		b.p.upstreams[1].health.answered(200) // keeps b
		b.check(2, "a")
		b.p.upstreams[1].health.answered(200)
		b.check(1, "b")
	})
}

func TestPieceOfAStreamTakesNobodyBack(t *testing.T) {
	inBubble(t, true, func(b *bench) {
		b.check(1, "a")
		a := b.p.upstreams[0]
		b.p.failed(b.t.Context(), a, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("refused")})
		a.health.goesOn(200)
		if got := b.p.Serving(); got != "b" {
			t.Errorf("serving %q, want b: the first ends its streams and takes no more", got)
		}
		b.problem(0, "a request could not be sent: dial tcp: refused")
	})
}

func TestNotingAnAnswerCostsLittle(t *testing.T) {
	h := &health{}
	if n := testing.AllocsPerRun(100, func() { h.answered(200); h.goesOn(200) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func TestUpstreamThatHasAnsweredARequestIsNotAsked(t *testing.T) {
	inBubble(t, false, func(b *bench) {
		asked := func(want ...string) {
			t.Helper()
			b.mu.Lock()
			defer b.mu.Unlock()
			slices.Sort(b.polls)
			if !slices.Equal(b.polls, want) {
				t.Errorf("asked %q, want %q", b.polls, want)
			}
			b.polls = nil
		}
		b.p.upstreams[1].alive = "/v2/health/ready"
		b.request(chatPath)
		b.check(1, "a")
		asked("b/v2/health/ready")
		b.check(1, "a")
		asked("a/v1/models", "b/v2/health/ready")
		b.answer.Store(500)
		b.request(chatPath)
		b.check(1, "a")
		asked("a/v1/models", "b/v2/health/ready")
		b.answer.Store(200)
		b.request(chatPath)
		b.dial.Store(&refused) // while it has answered others
		b.p.failed(b.t.Context(), b.p.upstreams[0], &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
		b.p.Close()
		b.check(1, "")
	})
}
