package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// deadURL is an address where nobody listens. Its port stays taken: one that is given
// back may be the next listener's, and a proxy before itself never ends.
func deadURL(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("http://127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port)
}

// saying is an upstream that answers with its name.
func saying(t *testing.T, name string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, name)
	}))
	t.Cleanup(s.Close)
	return s
}

func failover(urls ...string) rigOption {
	return withConfig(func(c *Config) {
		c.Failover, c.Upstreams = true, nil
		for i, u := range urls {
			c.Upstreams = append(c.Upstreams, Upstream{Name: string(rune('a' + i)), URL: u})
		}
	})
}

func TestRequestGoesToTheNextUpstreamWhenItsOwnCannotBeDialled(t *testing.T) {
	second := saying(t, "second")
	dead := deadURL(t)
	r := newRigTo(t, "", failover(dead, second.URL))
	if got := text(t, r.post(chatPath, "{}")); got != "second" {
		t.Errorf("got %q, want the second's answer", got)
	}
	if rec := r.seen.record(t); rec.Engine != "b" || rec.Outcome != OutcomeForwarded {
		t.Errorf("record %+v, want engine b", rec)
	}
	if s := r.proxy.Stats(); s.Reroutes != 1 {
		t.Errorf("reroutes: got %d, want 1", s.Reroutes)
	}
	for _, path := range []string{chatPath, "/v1/models"} { // now it is known
		if got := text(t, r.post(path, "{}")); got != "second" {
			t.Errorf("%s: got %q, want the second's answer", path, got)
		}
	}
	if s := r.proxy.Stats(); s.Reroutes != 1 {
		t.Errorf("reroutes: got %d, want still 1: the first was not tried again", s.Reroutes)
	}
}

func TestBodyThatIsNotAtHandGoesNowhereElse(t *testing.T) {
	second := saying(t, "second")
	r := newRigTo(t, "", failover(deadURL(t), second.URL), withConfig(func(c *Config) { c.ScanBytes = 1 }))
	if res := r.post(chatPath, `{"prompt":"`+strings.Repeat("x", 300<<10)+`"}`); res.StatusCode != 502 {
		t.Errorf("got %d, want 502: a part of the body may be gone", res.StatusCode)
	}
	if rec := r.seen.record(t); rec.Outcome != OutcomeUpstreamUnreachable || rec.Engine != "a" {
		t.Errorf("record %s of %s, want unreachable of a", rec.Outcome, rec.Engine)
	}
	if got := text(t, r.post(chatPath, `{"stream":true}`)); got != "second" {
		t.Errorf("the next one: got %q, want the second's answer", got)
	}
}

func TestPassedRequestTeachesThatItsUpstreamIsDown(t *testing.T) {
	second := saying(t, "second")
	r := newRigTo(t, "", failover(deadURL(t), second.URL))
	if res := r.post("/v1/models", "{}"); res.StatusCode != 502 {
		t.Errorf("got %d, want 502: a passed body is not kept for another try", res.StatusCode)
	}
	if got := text(t, r.post("/v1/models", "{}")); got != "second" {
		t.Errorf("got %q, want the second's answer", got)
	}
}

// TestPassedRequestWithoutABodyGoesToTheNextUpstream: it is all at hand. A WebSocket
// begins with one.
func TestPassedRequestWithoutABodyGoesToTheNextUpstream(t *testing.T) {
	for name, fields := range map[string]http.Header{
		"get": {}, "upgrade": {"Connection": {"Upgrade"}, "Upgrade": {"websocket"}},
	} {
		seen := make(chan string, 1)
		second := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen <- r.Host + " " + r.URL.RequestURI() + " " + r.Header.Get("Upgrade")
		}))
		t.Cleanup(second.Close)
		r := newRigTo(t, "", failover(deadURL(t), second.URL+"/base"))
		req, _ := http.NewRequest("GET", r.server.URL+"/v1/models?a=%zz&b=1", nil)
		req.Header = fields
		res, err := r.client.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		res.Body.Close()
		if res.StatusCode != 200 {
			t.Fatalf("%s: got %d, want the second's 200", name, res.StatusCode)
		}
		want := strings.TrimPrefix(second.URL, "http://") + " /base/v1/models?a=%zz&b=1 " + fields.Get("Upgrade")
		if got := <-seen; got != want {
			t.Errorf("%s: the second got %q, want %q", name, got, want)
		}
		if got := r.proxy.Stats().Reroutes; got != 1 {
			t.Errorf("%s: got %d reroutes, want 1", name, got)
		}
	}
}

func TestPassedRequestGetsTheErrorWhereAllAreDown(t *testing.T) {
	r := newRigTo(t, "", failover(deadURL(t), deadURL(t)))
	res, err := r.client.Get(r.server.URL + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body := text(t, res); res.StatusCode != 502 || !strings.Contains(body, CodeUnreachable) {
		t.Errorf("got %d %s, want 502", res.StatusCode, body)
	}
}

func TestWithoutFailoverOnlyTheFirstServes(t *testing.T) {
	second := saying(t, "second")
	r := newRigTo(t, "", failover(deadURL(t), second.URL), withConfig(func(c *Config) { c.Failover = false }))
	for range 2 {
		if res := r.post(chatPath, "{}"); res.StatusCode != 502 {
			t.Errorf("got %d, want 502", res.StatusCode)
		}
	}
	if up, down := r.proxy.Check(t.Context()); up != nil || !slices.Equal(down, []string{"a"}) {
		t.Errorf("checked: %v %v, want the first down", up, down)
	}
	if got := r.proxy.Serving(); got != "" {
		t.Errorf("serving: got %q, want none: nobody takes over", got)
	}
}

func TestWhereAllAreDownTheFirstsErrorIsTheAnswer(t *testing.T) {
	first := deadURL(t)
	r := newRigTo(t, "", failover(first, deadURL(t)))
	for range 2 {
		res := r.post(chatPath, "{}")
		if body := text(t, res); res.StatusCode != 502 || !strings.Contains(body, CodeUnreachable) {
			t.Errorf("got %d %s, want 502", res.StatusCode, body)
		}
	}
	r.idle()
}

// TestAnsweredRequestIsNeverSentElsewhere: what the first has had, the second must
// not have as well.
func TestAnsweredRequestIsNeverSentElsewhere(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"503":    func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) },
		"broken": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		var asked atomic.Int64
		first := httptest.NewServer(h)
		defer first.Close()
		second := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
		defer second.Close()
		r := newRigTo(t, "", failover(first.URL, second.URL))
		if res := r.post(chatPath, "{}"); res.StatusCode < 500 || asked.Load() != 0 {
			t.Errorf("%s: got %d and %d requests at the second, want the first's failure", name, res.StatusCode, asked.Load())
		}
	}
}

func TestChecksTakeAnUpstreamOutAndBack(t *testing.T) {
	status := atomic.Int64{}
	status.Store(200)
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/base/v1/models" || r.Header.Get("Authorization") != "Bearer own" {
			t.Errorf("asked for %s with %v", r.URL.Path, r.Header)
		}
		w.WriteHeader(int(status.Load()))
	}))
	defer first.Close()
	second := saying(t, "second")
	r := newRigTo(t, "", failover(first.URL+"/base", second.URL), withConfig(func(c *Config) { c.UpstreamKey = "own" }))
	check := func(code int, wantUp, wantDown []string) {
		t.Helper()
		status.Store(int64(code))
		if up, down := r.proxy.Check(t.Context()); !slices.Equal(up, wantUp) || !slices.Equal(down, wantDown) {
			t.Errorf("%d: up %v, down %v; want %v and %v", code, up, down, wantUp, wantDown)
		}
	}
	check(200, nil, nil)
	check(404, nil, nil) // has no such path, and lives
	check(503, nil, nil)
	check(503, nil, nil)
	check(503, nil, []string{"a"})
	if got := text(t, r.post(chatPath, "{}")); got != "second" {
		t.Errorf("got %q, want the second's answer", got)
	}
	check(503, nil, nil)
	check(200, []string{"a"}, nil)
	if r.proxy.pick() != 0 {
		t.Error("the first is not chosen again")
	}
	first.Close()
	if up, down := r.proxy.Check(t.Context()); up != nil || !slices.Equal(down, []string{"a"}) {
		t.Errorf("nobody listens: up %v, down %v; want a down at once", up, down)
	}
}

func TestCheckThatIsCancelledSaysNothing(t *testing.T) {
	r := newRigTo(t, "", failover(deadURL(t), deadURL(t)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if up, down := r.proxy.Check(ctx); up != nil || down != nil || r.proxy.pick() != 0 || r.proxy.upstreams[0].health.down.Load() {
		t.Errorf("up %v, down %v, want nothing learned", up, down)
	}
}

func TestClientThatLeavesWhileDiallingTeachesNothing(t *testing.T) {
	p := New(DefaultConfig(), nil, nil)
	defer p.Close()
	p.cfg.Failover = true
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := &net.OpError{Op: "dial", Err: errors.New("operation was canceled")}
	if p.failed(ctx, p.upstreams[0], err) || p.upstreams[0].health.down.Load() {
		t.Error("a cancelled dial took the upstream down")
	}
	if p.failed(t.Context(), p.upstreams[0], &net.OpError{Op: "read", Err: io.EOF}) {
		t.Error("a broken read counts as a failed dial")
	}
}

func TestUpstreamIsUpOnceItHasAnswered(t *testing.T) {
	second, dead := saying(t, "second"), deadURL(t)
	r := newRigTo(t, "", failover(dead, second.URL))
	unasked := "it has not been asked yet how it is"
	if got := r.proxy.Health(); !slices.Equal(got, []Health{{"a", false, unasked}, {"b", false, unasked}}) || r.proxy.Serving() != "" {
		t.Errorf("before any check: %+v, serving %q; want nothing taken for granted", got, r.proxy.Serving())
	}
	r.proxy.Check(t.Context())
	refused := "GET /v1/models: dial tcp " + strings.TrimPrefix(dead, "http://") + ": connect: connection refused"
	if got := r.proxy.Health(); !slices.Equal(got, []Health{{"a", false, refused}, {"b", true, ""}}) || r.proxy.Serving() != "b" {
		t.Errorf("after it: %+v, serving %q; want b", got, r.proxy.Serving())
	}
}

func TestCheckSaysWhatARequestHasMet(t *testing.T) {
	first, second := deadURL(t), saying(t, "second")
	r := newRigTo(t, "", failover(first, second.URL))
	text(t, r.post(chatPath, "{}")) // could not be dialled
	if up, down := r.proxy.Check(t.Context()); up != nil || !slices.Equal(down, []string{"a"}) {
		t.Errorf("up %v, down %v; want what the request met", up, down)
	}
	if up, down := r.proxy.Check(t.Context()); up != nil || down != nil {
		t.Errorf("once more: up %v, down %v; want it said once", up, down)
	}
	r.proxy.upstreams[1].health.down.Store(true) // a request that met a server in the midst of its start
	if up, down := r.proxy.Check(t.Context()); !slices.Equal(up, []string{"b"}) || !slices.Equal(down, []string{"b"}) {
		t.Errorf("short of a check: up %v, down %v; want both said", up, down)
	}
}

func TestHealthIsKeptOverAReload(t *testing.T) {
	second := saying(t, "second")
	r := newRigTo(t, "", failover(deadURL(t), second.URL))
	text(t, r.post(chatPath, "{}"))
	p, err := r.proxy.Reconfigured(r.proxy.cfg)
	if err != nil || p.pick() != 1 {
		t.Errorf("%v: picks %d, want what was learned before", err, p.pick())
	}
}
