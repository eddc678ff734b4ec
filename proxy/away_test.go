package proxy

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// cutRig is a rig whose server can be cut.
func cutRig(t *testing.T, h http.HandlerFunc, opts ...rigOption) (*rig, context.CancelCauseFunc) {
	t.Helper()
	r := newRig(t, h, opts...)
	serving, cut := context.WithCancelCause(t.Context())
	server := httptest.NewUnstartedServer(nil)
	server.Config = Server(r.proxy)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Config.BaseContext = func(net.Listener) context.Context { return serving }
	server.Start()
	r.server.Close()
	r.server = server
	return r, cut
}

func TestCutBeforeHeadersIsAnswered503(t *testing.T) {
	for name, c := range map[string]struct {
		proto int
		gate  Gate
	}{"waits for its upstream": {1, nil}, "HTTP/2": {2, nil}, "held": {1, holds(wait)}} {
		called, gone := make(chan struct{}, 1), make(chan struct{}, 1)
		asked := make(chan struct{}, 1)
		gate := c.gate
		if gate != nil {
			gate = gateFunc(func(ctx context.Context, r Request) Verdict { asked <- struct{}{}; return c.gate.Admit(ctx, r) })
		}
		r, cut := cutRig(t, untilGone(called, gone, func(http.ResponseWriter) {}), withGate(gate))
		if c.proto == 2 {
			r.speakHTTP2()
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			res, err := r.client.Post(r.server.URL+chatPath, "", strings.NewReader("{}"))
			if err != nil {
				t.Errorf("%s: %v, want 503", name, err)
				return
			}
			defer res.Body.Close()
			body, _ := io.ReadAll(res.Body)
			if res.StatusCode != 503 || res.Header.Get("Retry-After") != "1" || !strings.Contains(string(body), `"code":"lull_draining"`) {
				t.Errorf("%s: got %d %v %s, want 503 with Retry-After and the code", name, res.StatusCode, res.Header, body)
			}
		}()
		if gate != nil {
			within(t, "gate asked", asked)
		} else {
			within(t, "upstream called", called)
		}
		cut(ErrCut)
		within(t, "answer", ended)
		if gate == nil {
			within(t, "upstream cancelled", gone)
		}
		if rec := r.seen.record(t); rec.Outcome != OutcomeCut || rec.Err != ErrCut || rec.Status != 503 {
			t.Errorf("%s: record %s %v %d, want cut", name, rec.Outcome, rec.Err, rec.Status)
		}
		r.idle()
	}
}

func TestCutPassedRequestIsAnswered503(t *testing.T) {
	called, gone := make(chan struct{}, 1), make(chan struct{}, 1)
	r, cut := cutRig(t, untilGone(called, gone, func(http.ResponseWriter) {}))
	status := make(chan int, 1)
	go func() {
		res, err := r.client.Get(r.server.URL + "/v1/models")
		if err != nil {
			t.Error(err)
			status <- 0
			return
		}
		res.Body.Close()
		status <- res.StatusCode
	}()
	within(t, "upstream called", called)
	cut(ErrCut)
	if got := <-status; got != 503 {
		t.Errorf("got %d, want 503", got)
	}
	within(t, "upstream cancelled", gone)
}

// TestCutStreamNeverLooksComplete: whatever was under way breaks, on either
// protocol and path.
func TestCutStreamNeverLooksComplete(t *testing.T) {
	bothPaths(t, func(t *testing.T, path string) {
		for _, proto := range []int{1, 2} {
			called, gone := make(chan struct{}, 1), make(chan struct{}, 1)
			r, cut := cutRig(t, untilGone(called, gone, func(w http.ResponseWriter) { parts(w, nil, chunk("a")) }))
			if proto == 2 {
				r.speakHTTP2()
			}
			res := r.post(path, `{"stream":true}`)
			got := make([]byte, len(chunk("a")))
			if _, err := io.ReadFull(res.Body, got); err != nil {
				t.Fatal(err)
			}
			within(t, "upstream called", called)
			cut(ErrCut)
			if rest, err := io.ReadAll(res.Body); err == nil || len(rest) > 0 {
				t.Errorf("HTTP/%d: got %q and a clean end, want a broken transfer", proto, rest)
			}
			within(t, "upstream cancelled", gone)
			if path == chatPath {
				if rec := r.seen.record(t); rec.Outcome != OutcomeCut || rec.Err != ErrCut || rec.Contents != 1 {
					t.Errorf("HTTP/%d: record %s %v, want cut", proto, rec.Outcome, rec.Err)
				}
			}
			r.idle()
		}
	})
}

func TestClientThatLeftIsNotCalledCut(t *testing.T) {
	called, gone := make(chan struct{}, 1), make(chan struct{}, 1)
	r, cut := cutRig(t, untilGone(called, gone, func(http.ResponseWriter) {}))
	c := r.rawPost("{}")
	within(t, "upstream called", called)
	c.Close()
	if rec := r.seen.record(t); rec.Outcome != OutcomeClientGone {
		t.Errorf("record %s, want client_gone", rec.Outcome)
	}
	cut(ErrCut)
	within(t, "upstream cancelled", gone)
}

func TestCutEndsAnUpgradedConnection(t *testing.T) {
	r, cut := cutRig(t, func(w http.ResponseWriter, _ *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		rw.Flush()
		_, _ = io.Copy(io.Discard, rw)
	})
	c, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	head := make([]byte, len("HTTP/1.1 101"))
	if _, err := io.ReadFull(c, head); err != nil || string(head) != "HTTP/1.1 101" {
		t.Fatalf("got %q, %v; want an upgrade", head, err)
	}
	cut(ErrCut)
	_ = c.SetReadDeadline(time.Now().Add(wait))
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Errorf("got %v, want the end of the connection", err)
	}
	r.idle()
}

func TestDrainingProxyTurnsAwayUnreadAndServesWhatItHas(t *testing.T) {
	next := make(chan struct{})
	r := newRig(t, paced(sseMedia, []string{chunk("a"), doneChunk}, next))
	open := r.post(chatPath, `{"stream":true}`)
	draining := httptest.NewServer(r.proxy.Draining(time.Now().Add(10*time.Second - time.Millisecond)))
	defer draining.Close()
	for _, path := range []string{chatPath, "/v1/messages", "/health"} {
		res, err := r.client.Post(draining.URL+path, "", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		body := text(t, res)
		res.Body.Close()
		if res.StatusCode != 503 || res.Header.Get("Retry-After") != "10" || !res.Close || !strings.Contains(body, "lull_draining") ||
			!strings.Contains(body, "lull: this process is stopping; try again, on another one if there is any") {
			t.Errorf("%s: got %d %v %s, want 503, Retry-After 10 and the end of the connection", path, res.StatusCode, res.Header, body)
		}
		if path == "/health" {
			continue
		}
		if rec := r.seen.record(t); rec.Outcome != OutcomeDraining || rec.Status != 503 || rec.Engine != "fake" || rec.Path != path {
			t.Errorf("%s: record %+v, want one turned away", path, rec)
		}
	}
	for range 2 {
		next <- struct{}{}
	}
	if got := text(t, open); got != chunk("a")+doneChunk {
		t.Errorf("the open stream: got %q, want all of it", got)
	}
	r.seen.record(t)
	r.idle()
	r.seen.noMore(t)
}

func TestReconfiguredProxyServesOthersAndCutsNobody(t *testing.T) {
	next := make(chan struct{})
	r := newRig(t, paced(sseMedia, []string{chunk("a"), doneChunk}, next))
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "other") }))
	defer other.Close()
	open := r.post(chatPath, `{"stream":true}`)
	cfg := r.proxy.cfg
	cfg.Upstreams = []Upstream{{Name: "other", URL: other.URL}}
	cfg.BodyMemory = 7
	p, err := r.proxy.Reconfigured(cfg)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(p)
	defer server.Close()
	for _, path := range []string{chatPath, "/other"} {
		res, err := r.client.Post(server.URL+path, "", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if got := text(t, res); got != "other" {
			t.Errorf("%s: got %q, want the new upstream's", path, got)
		}
		res.Body.Close()
	}
	if rec := r.seen.record(t); rec.Engine != "other" {
		t.Errorf("record %+v, want the new engine", rec)
	}
	if got := p.Stats().InFlight; got != 1 {
		t.Errorf("in flight: got %d, want the one of before: counts are shared", got)
	}
	for range 2 {
		next <- struct{}{}
	}
	if got := text(t, open); got != chunk("a")+doneChunk {
		t.Errorf("the open stream: got %q, want all of it", got)
	}
	if rec := r.seen.record(t); rec.Engine != "fake" || rec.Outcome != OutcomeForwarded {
		t.Errorf("record %+v, want the engine of before", rec)
	}
	r.idle()
}

func TestBadConfigIsRefusedAndChangesNothing(t *testing.T) {
	r := newRig(t, stream(doneChunk))
	cfg := r.proxy.cfg
	cfg.IdleLimit, cfg.BodyMemory = 0, 7
	if p, err := r.proxy.Reconfigured(cfg); p != nil || err == nil || err.Error() != "proxy.idle_timeout: got 0s, want more than 0" {
		t.Errorf("got %v, %v", p, err)
	}
	if got := r.proxy.bodies.limit.Load(); got != DefaultConfig().BodyMemory {
		t.Errorf("memory for bodies: got %d, want it as it was", got)
	}
}
