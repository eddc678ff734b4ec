package sidecar

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/engine"
)

func TestRequestsFollowTheUpstreamsHealth(t *testing.T) {
	first := httptest.NewServer(whole("first"))
	addr := strings.TrimPrefix(first.URL, "http://")
	l := newLone(t, whole("second"), func(f *config.File) {
		f.Engines = append([]config.Engine{{Name: "front", Kind: "openai", URL: first.URL}}, f.Engines...)
	}, nil)
	l.chat("first")
	l.shows(`lull_engine_up{engine="front"} 1`) // the first check is over: what comes is another's to find
	next := l.file
	next.Proxy.Failover = true
	if changed, restart, err := l.sidecar.Reload(next); err != nil || len(changed) != 1 || len(restart) != 0 {
		t.Fatalf("changed %v, restart %v, %v", changed, restart, err)
	}
	first.Close()
	l.chat("second") // at once: it could not be dialled
	l.chat("second")
	l.logged(`upstream is down; requests go to those that are not" engine=front serving=main`)
	if ready, problems := l.readyz(); !ready || !strings.Contains(problems, "dial tcp "+addr) || !strings.Contains(problems, "upstream front: ") {
		t.Errorf("ready %v: %s; want ready, and the one that is down named", ready, problems)
	}
	l.shows(`lull_failover_requests_total{engine="main"} 2`, `lull_engine_up{engine="front"} 0`, `lull_engine_up{engine="main"} 1`, `lull_ready 1`)
	serveAt(t, addr, whole("first"))
	l.logged(`upstream is up again" engine=front serving=front`)
	l.chat("first")
	l.shows(`lull_failover_requests_total{engine="main"} 2`, `lull_engine_up{engine="front"} 1`)
}

// TestReloadedBalanceCountsWhatWasOpenBefore has a stream open at the first engine.
func TestReloadedBalanceCountsWhatWasOpenBefore(t *testing.T) {
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, firstEvent)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	}))
	t.Cleanup(first.Close)
	l := newLone(t, whole("second"), func(f *config.File) {
		f.Engines = append([]config.Engine{{Name: "front", Kind: "openai", URL: first.URL}}, f.Engines...)
	}, nil)
	open := l.open()
	next := l.file
	next.Proxy.Failover, next.Proxy.Balance = true, "least_load"
	if changed, restart, err := l.sidecar.Reload(next); err != nil || len(changed) != 2 || len(restart) != 0 {
		t.Fatalf("changed %v, restart %v, %v", changed, restart, err)
	}
	l.chat("second")
	l.chat("second")
	open.Body.Close()
}

// serveAt listens at an address that was another's.
func serveAt(t *testing.T, addr string, h http.Handler) {
	t.Helper()
	again, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	back := &http.Server{Handler: h}
	ended := make(chan struct{})
	go func() { _ = back.Serve(again); close(ended) }() // ends when the test does
	t.Cleanup(func() { back.Close(); <-ended })
}

// shows waits until /metrics has these lines.
func (l *lone) shows(lines ...string) {
	l.t.Helper()
	l.until("metrics show "+strings.Join(lines, ", "), func() bool {
		_, _, body, err := l.call(http.MethodGet, l.admin+"/metrics", "", nil)
		return err == nil && !slices.ContainsFunc(lines, func(line string) bool { return !strings.Contains(body, line+"\n") })
	})
}

// readyz is /readyz's answer.
func (l *lone) readyz() (ready bool, body string) {
	l.t.Helper()
	status, _, body, err := l.call(http.MethodGet, l.admin+"/readyz", "", nil)
	if err != nil || (status == 200) != strings.Contains(body, `"ready":true`) {
		l.t.Errorf("readyz: %d %s, %v; want its status to be what it says", status, body, err)
	}
	return status == 200, body
}

func TestReadyOnceAnUpstreamHasAnswered(t *testing.T) {
	first := httptest.NewServer(whole("first"))
	addr := strings.TrimPrefix(first.URL, "http://")
	first.Close()
	l := newLone(t, whole("nobody's"), func(f *config.File) { f.Engines[0].URL = first.URL }, nil)
	l.logged(`upstream is down and no other serves; requests get its error" engine=main`)
	want := `{"problems":["upstream main: GET /v1/models: dial tcp ` + addr + `: connect: connection refused"],"ready":false}`
	if ready, body := l.readyz(); ready || body != want {
		t.Errorf("ready %v: %s, want %s", ready, body, want)
	}
	l.shows(`lull_ready 0`, `lull_engine_up{engine="main"} 0`)
	serveAt(t, addr, whole("first"))
	l.logged(`upstream is up again" engine=main serving=main`)
	if ready, body := l.readyz(); !ready || body != `{"problems":[],"ready":true}` {
		t.Errorf("ready %v: %s, want ready", ready, body)
	}
}

func TestThatNothingIsLentIsSaidOnceAtTheStart(t *testing.T) {
	l := newLone(t, whole("x"), nil, nil)
	const said = `level=WARN msg="Lull only relays and measures: no engine is on a device, so nothing is lent; `
	l.logged(said)
	l.end()
	if n := strings.Count(l.logs.String(), said); n != 1 {
		t.Errorf("said %d times, want once", n)
	}
}

func TestWhatDoesNothingIsSaidAtTheStartAndAtAReload(t *testing.T) {
	l := newLone(t, whole("x"), func(f *config.File) { f.Proxy.Failover = true }, func(s *Sidecar) {
		s.Follow("", func() (config.File, error) {
			next := s.file
			next.Interference.Yield = config.Auto
			return next, nil
		})
	})
	l.logged(`level=WARN msg="proxy.failover: got true with one engine, `)
	l.sidecar.ReloadNow()
	l.logged(`level=WARN msg="interference.yield: got auto without an objective, `)
	l.logged(`msg="config reloaded" why=asked changed=[interference.yield]`)
}

// still is an engine that can what it is given.
type still struct{ can engine.Capabilities }

func (e still) Name() string                      { return e.can.Kind }
func (e still) Capabilities() engine.Capabilities { return e.can }
func (e still) Observe(context.Context) (engine.Sample, error) {
	return engine.Sample{}, nil
}

func TestServersWhoseMemoryStaysAreNamedAtTheStart(t *testing.T) {
	stock := &engineDriver{id: "main", engine: still{engine.Capabilities{Kind: "vllm", Static: true}}}
	lends := &engineDriver{id: "other", engine: still{engine.Capabilities{Kind: "lull-vllm", Bound: true}}}
	want := "Lull only relays and measures: no server's KV memory moves, of main (vllm); training gets only what stands beside it. docs/ENGINES.md says which servers lend"
	if got := onlyRelays([]*engineDriver{stock}); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := onlyRelays([]*engineDriver{stock, lends}); got != "" {
		t.Errorf("got %q beside a server that lends, want nothing", got)
	}
}
