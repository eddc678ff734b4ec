package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// untilGone is an upstream that says when it was called and when its request
// was cancelled.
func untilGone(called, gone chan struct{}, before func(http.ResponseWriter)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		before(w)
		called <- struct{}{}
		<-r.Context().Done()
		gone <- struct{}{}
	}
}

func within(t *testing.T, what string, c chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(wait):
		t.Fatalf("%s: nothing in %v", what, wait)
	}
}

func TestUpstreamIsCancelledWhenTheClientLeaves(t *testing.T) {
	for name, before := range map[string]func(http.ResponseWriter){
		"before headers": func(http.ResponseWriter) {},
		"after headers":  func(w http.ResponseWriter) { w.WriteHeader(200); w.(http.Flusher).Flush() },
		"mid-stream": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, chunk("a"))
			w.(http.Flusher).Flush()
		},
		"mid-answer without streaming": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "1000")
			io.WriteString(w, `{"choices":`)
			w.(http.Flusher).Flush()
		},
	} {
		for _, path := range []string{chatPath, "/other"} {
			t.Run(name+path, func(t *testing.T) {
				called, gone := make(chan struct{}, 1), make(chan struct{}, 1)
				r := newRig(t, untilGone(called, gone, before))
				ctx, leave := context.WithCancel(t.Context())
				req, _ := http.NewRequestWithContext(ctx, "POST", r.server.URL+path, strings.NewReader("{}"))
				left := make(chan struct{})
				go func() {
					defer close(left)
					if res, err := r.client.Do(req); err == nil {
						_, _ = io.Copy(io.Discard, res.Body)
						res.Body.Close()
					}
				}()
				within(t, "upstream called", called)
				leave()
				within(t, "upstream cancelled", gone)
				<-left
				if path == chatPath {
					if rec := r.seen.record(t); rec.Outcome != OutcomeClientGone || rec.Err == nil || !rec.Failed() {
						t.Errorf("record: got %s %v, want client_gone", rec.Outcome, rec.Err)
					}
				}
				r.idle()
				r.seen.noMore(t)
			})
		}
	}
}

// TestUpstreamsConnectionIsClosedWhenTheClientLeaves: engines stop only when the
// connection ends; not reading on is not enough.
func TestUpstreamsConnectionIsClosedWhenTheClientLeaves(t *testing.T) {
	ended := make(chan struct{}, 1)
	url := rawServer(t, func(_ int, c net.Conn) {
		br := bufio.NewReader(c)
		if _, _, err := readRequest(br); err != nil {
			return
		}
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(chunk("a")), chunk("a"))
		_, _ = br.ReadByte() // until the connection ends
		ended <- struct{}{}
	})
	r := newRigTo(t, url)
	c := r.rawPost(`{"stream":true}`)
	if _, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
		t.Fatal(err)
	}
	c.Close()
	within(t, "upstream's connection closed", ended)
	if rec := r.seen.record(t); rec.Outcome != OutcomeClientGone {
		t.Errorf("outcome: got %s, want client_gone", rec.Outcome)
	}
}

func TestInFlightIsZeroAfterClientLeavesWhileHeld(t *testing.T) {
	entered := make(chan struct{}, 1)
	gate := gateFunc(func(ctx context.Context, _ Request) Verdict {
		entered <- struct{}{}
		<-ctx.Done()
		return Verdict{Forward: true}
	})
	called := make(chan struct{}, 1)
	r := newRig(t, func(http.ResponseWriter, *http.Request) { called <- struct{}{} }, withGate(gate))
	c := r.rawPost(`{"stream":true}`)
	within(t, "gate asked", entered)
	if got := r.proxy.InFlight(); got != 1 {
		t.Errorf("in flight: got %d, want 1", got)
	}
	c.Close()
	rec := r.seen.record(t)
	if rec.Outcome != OutcomeClientGone || rec.Held <= 0 || !rec.Forwarded.IsZero() || rec.Status != 0 {
		t.Errorf("record: got %+v, want client_gone, never forwarded", rec)
	}
	r.idle()
	select {
	case <-called:
		t.Error("upstream: it got a request whose client had left")
	default:
	}
}

func TestInFlightIsZeroAfterClientLeavesInItsUpload(t *testing.T) {
	r := newRig(t, stream(doneChunk))
	c, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"mod", chatPath)
	c.Close()
	if rec := r.seen.record(t); rec.Outcome != OutcomeClientGone || rec.Admission != "" || rec.RequestBytes != 5 {
		t.Errorf("record: got %+v, want client_gone and no admission", rec)
	}
	r.idle()
}

func TestBrokenUpstreamStreamBreaksTheClientsTransfer(t *testing.T) {
	cut := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 40 {
			io.WriteString(w, chunk("x"))
			w.(http.Flusher).Flush()
		}
		panic(http.ErrAbortHandler)
	}
	for _, path := range []string{chatPath, "/other"} {
		r := newRig(t, cut)
		res := r.post(path, `{"stream":true}`)
		got, err := io.ReadAll(res.Body)
		if err == nil || len(got) != 40*len(chunk("x")) {
			t.Errorf("%s: got %d bytes and error %v, want 40 events and a broken transfer", path, len(got), err)
		}
		if path == chatPath {
			rec := r.seen.record(t)
			if rec.Outcome != OutcomeBrokenStream || rec.Contents != 40 || !errors.Is(rec.Err, io.ErrUnexpectedEOF) {
				t.Errorf("record: got %s %d %v, want broken_stream after 40 events", rec.Outcome, rec.Contents, rec.Err)
			}
		}
		r.idle()
		r.seen.noMore(t)
	}
}

func TestUpstreamThatDiesMidChunkBreaksTheClientsTransfer(t *testing.T) {
	for name, answer := range map[string]string{
		"chunked":        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n40\r\ndata: {\"cho",
		"no end chunk":   "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n: abc\r\n",
		"content length": "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{\"choices\":",
	} {
		url := rawServer(t, func(_ int, c net.Conn) {
			if _, _, err := readRequest(bufio.NewReader(c)); err == nil {
				io.WriteString(c, answer)
			}
		})
		r := newRigTo(t, url)
		res := r.post(chatPath, `{"stream":true}`)
		if got, err := io.ReadAll(res.Body); err == nil {
			t.Errorf("%s: got %q and a clean end, want a broken transfer", name, got)
		}
		if rec := r.seen.record(t); rec.Outcome != OutcomeBrokenStream {
			t.Errorf("%s: outcome: got %s, want broken_stream", name, rec.Outcome)
		}
		r.idle()
	}
}

func TestUpstreamDownIs502WithAStableCode(t *testing.T) {
	down := httptest.NewServer(nil)
	down.Close()
	r := newRigTo(t, down.URL)
	for _, path := range []string{chatPath, "/other"} {
		res := r.post(path, `{}`)
		body := text(t, res)
		if res.StatusCode != 502 || res.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: got %d %s, want 502 as JSON", path, res.StatusCode, res.Header.Get("Content-Type"))
		}
		for _, want := range []string{`"type":"upstream_error"`, `"param":null`, `"code":"lull_upstream_unreachable"`, `"message":"lull: upstream gave no answer: `, "connection refused"} {
			if !strings.Contains(body, want) {
				t.Errorf("%s: body %s: want %s in it", path, body, want)
			}
		}
	}
	if rec := r.seen.record(t); rec.Outcome != OutcomeUpstreamUnreachable || rec.Status != 502 || rec.Err == nil {
		t.Errorf("record: got %+v, want upstream_unreachable", rec)
	}
	r.idle()
}

func TestUpstreamThatClosesBeforeHeadersIs502AndAskedOnce(t *testing.T) {
	asked := make(chan struct{}, 9)
	url := rawServer(t, func(_ int, c net.Conn) {
		if _, _, err := readRequest(bufio.NewReader(c)); err == nil {
			asked <- struct{}{}
		}
	})
	r := newRigTo(t, url)
	if res := r.post(chatPath, `{}`); res.StatusCode != 502 {
		t.Errorf("status: got %d, want 502", res.StatusCode)
	}
	if rec := r.seen.record(t); rec.Outcome != OutcomeUpstreamUnreachable {
		t.Errorf("outcome: got %s, want upstream_unreachable", rec.Outcome)
	}
	if len(asked) != 1 {
		t.Errorf("asked: got %d times, want once on a new connection", len(asked))
	}
}

// oneRequestEach answers the first request of a connection and closes it when
// the second one comes, as a server does whose keep-alive has just run out.
func oneRequestEach(asked *counter, pause time.Duration) func(int, net.Conn) {
	return func(_ int, c net.Conn) {
		br := bufio.NewReader(c)
		if _, _, err := readRequest(br); err != nil {
			return
		}
		asked.add(1)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
		_, _ = br.Peek(1)
		if pause > 0 {
			_, _, _ = readRequest(br)
			asked.add(1)
			time.Sleep(pause) // the engine works, then dies
		}
	}
}

func TestRequestOnAConnectionJustClosedIsSentOnANewOne(t *testing.T) {
	var asked counter
	r := newRigTo(t, rawServer(t, oneRequestEach(&asked, 0)))
	r.proxy.staleWithin = wait
	for i := range 4 {
		if res := r.post(chatPath, `{"model":"m"}`); res.StatusCode != 200 || text(t, res) != "{}" {
			t.Errorf("request %d: got %d, want 200", i, res.StatusCode)
		}
		if rec := r.seen.record(t); rec.Outcome != OutcomeForwarded {
			t.Errorf("request %d: outcome %s, want forwarded", i, rec.Outcome)
		}
	}
	if got := r.proxy.Stats().Replays; got != 3 || asked.get() != 4 {
		t.Errorf("got %d replays and %d requests answered, want 3 and 4", got, asked.get())
	}
}

// TestRequestThatOnlyPartlyLeftIsSentOnANewConnection: what fails is the write then,
// with another error behind a unix socket than at a port.
func TestRequestThatOnlyPartlyLeftIsSentOnANewConnection(t *testing.T) {
	body := `{"model":"` + strings.Repeat("m", 4<<20) + `"}` // more than any socket holds
	for _, network := range []string{"tcp", "unix"} {
		addr := "127.0.0.1:0"
		if network == "unix" {
			dir, err := os.MkdirTemp("", "lull") // a test's own folder may have too long a name
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			addr = filepath.Join(dir, "s")
		}
		l, err := net.Listen(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		var asked counter
		rawServerAt(t, l, oneRequestEach(&asked, 0))
		url := "http://" + l.Addr().String()
		if network == "unix" {
			url = "unix://" + addr
		}
		r := newRigTo(t, url)
		r.proxy.staleWithin = wait
		for i := range 4 {
			if res := r.post(chatPath, body); res.StatusCode != 200 || text(t, res) != "{}" {
				t.Errorf("%s, request %d: got %d, want 200", network, i, res.StatusCode)
			}
			if rec := r.seen.record(t); rec.Outcome != OutcomeForwarded {
				t.Errorf("%s, request %d: outcome %s (%v), want forwarded", network, i, rec.Outcome, rec.Err)
			}
		}
		if got := r.proxy.Stats().Replays; got != 3 || asked.get() != 4 {
			t.Errorf("%s: got %d replays and %d requests answered, want 3 and 4", network, got, asked.get())
		}
	}
}

func TestRequestIsNotSentTwiceToAnEngineThatDiedOfIt(t *testing.T) {
	var asked counter
	r := newRigTo(t, rawServer(t, oneRequestEach(&asked, 2*staleWindow)))
	text(t, r.post(chatPath, `{}`))
	if res := r.post(chatPath, `{}`); res.StatusCode != 502 {
		t.Errorf("status: got %d, want 502", res.StatusCode)
	}
	if asked.get() != 2 || r.proxy.Stats().Replays != 0 {
		t.Errorf("asked: got %d with %d replays, want 2 and none", asked.get(), r.proxy.Stats().Replays)
	}
}

func TestFailureAfterTheFirstAnswerByteIsNotRetried(t *testing.T) {
	var asked counter
	r := newRigTo(t, rawServer(t, func(_ int, c net.Conn) {
		br := bufio.NewReader(c)
		for n := 1; ; n++ {
			if _, _, err := readRequest(br); err != nil {
				return
			}
			asked.add(1)
			if n == 2 {
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-")
				return
			}
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
		}
	}))
	text(t, r.post(chatPath, `{}`))
	if res := r.post(chatPath, `{}`); res.StatusCode != 502 || asked.get() != 2 {
		t.Errorf("got %d after %d requests, want 502 after 2", res.StatusCode, asked.get())
	}
}

func TestSilentUpstreamIsEndedByTheIdleLimit(t *testing.T) {
	for _, path := range []string{chatPath, "/other"} {
		gone := make(chan struct{}, 1)
		r := newRig(t, untilGone(make(chan struct{}, 1), gone, func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, chunk("a"))
			w.(http.Flusher).Flush()
		}), withConfig(func(c *Config) { c.IdleLimit = time.Second / 2 }))
		if got, err := io.ReadAll(r.post(path, `{}`).Body); err == nil || string(got) != chunk("a") {
			t.Errorf("%s: got %q and error %v, want one event and a broken transfer", path, got, err)
		}
		within(t, "upstream cancelled", gone)
		if path == chatPath {
			if rec := r.seen.record(t); rec.Outcome != OutcomeIdle || rec.Err.Error() != "no byte from the upstream within proxy.idle_timeout" {
				t.Errorf("record: got %s %v, want upstream_idle", rec.Outcome, rec.Err)
			}
		}
		r.idle()
	}
}

func TestFlowingStreamOutlivesTheIdleLimit(t *testing.T) {
	t.Parallel()
	const limit = 2 * time.Second
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 10 {
			io.WriteString(w, chunk("a"))
			w.(http.Flusher).Flush()
			time.Sleep(limit / 5) // the stream's own pace
		}
	}, withConfig(func(c *Config) { c.IdleLimit = limit }))
	if got := text(t, r.post(chatPath, `{}`)); len(got) != 10*len(chunk("a")) {
		t.Errorf("got %d bytes, want all 10 events", len(got))
	}
}

func TestUpstreamWithoutHeadersIsEndedByTheFirstByteLimit(t *testing.T) {
	gone := make(chan struct{}, 1)
	r := newRig(t, untilGone(make(chan struct{}, 1), gone, func(http.ResponseWriter) {}),
		withConfig(func(c *Config) { c.FirstByteLimit = time.Second / 2 }))
	res := r.post(chatPath, `{}`)
	if body := text(t, res); res.StatusCode != 504 || !strings.Contains(body, `"code":"lull_upstream_timeout"`) || !strings.Contains(body, "proxy.first_byte_limit") {
		t.Errorf("got %d %s, want 504 with its code", res.StatusCode, body)
	}
	within(t, "upstream cancelled", gone)
	if rec := r.seen.record(t); rec.Outcome != OutcomeUpstreamTimeout {
		t.Errorf("outcome: got %s, want upstream_timeout", rec.Outcome)
	}
}

func TestHungUpstreamDoesNotHoldOtherRequests(t *testing.T) {
	hung := make(chan struct{})
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if strings.Contains(string(b), "hang") {
			<-hung
		}
	})
	defer close(hung)
	for range 20 {
		r.rawPost(`{"model":"hang"}`)
	}
	if res := r.post(chatPath, `{}`); res.StatusCode != 200 {
		t.Errorf("status: got %d, want 200", res.StatusCode)
	}
}

func TestCancelledStreamsLeaveNoGoroutines(t *testing.T) {
	r := newRig(t, endless(chunk("x")))
	before := runtime.NumGoroutine()
	for range 100 {
		c := r.rawPost(`{"stream":true}`)
		if _, err := io.ReadFull(c, make([]byte, 500)); err != nil {
			t.Fatal(err)
		}
		c.Close()
		if rec := r.seen.record(t); rec.Outcome != OutcomeClientGone {
			t.Errorf("outcome: got %s, want client_gone", rec.Outcome)
		}
	}
	r.idle()
	deadline := time.Now().Add(wait)
	for runtime.NumGoroutine() > before+10 {
		if time.Now().After(deadline) {
			t.Fatalf("goroutines: got %d, had %d", runtime.NumGoroutine(), before)
		}
		time.Sleep(5 * time.Millisecond) // polls a count that only falls
	}
}

func TestPanicInTheHandlerBreaksTheTransferAndIsAccounted(t *testing.T) {
	r := newRig(t, stream(doneChunk))
	r.proxy.upstreams[0].url = nil
	if res, err := r.client.Post(r.server.URL+chatPath, "", strings.NewReader("{}")); err == nil {
		t.Errorf("got %d, want a broken transfer", res.StatusCode)
	}
	if rec := r.seen.record(t); rec.Outcome != OutcomeInternal || !strings.HasPrefix(rec.Err.Error(), "proxy: panic while serving: ") {
		t.Errorf("record: got %s %v, want internal_error", rec.Outcome, rec.Err)
	}
	r.idle()
}

func TestClientThatTakesNothingIsEndedByTheIdleLimit(t *testing.T) {
	gone := make(chan struct{}, 1)
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		endless(chunk("x"))(w, r)
		gone <- struct{}{}
	}, withConfig(func(c *Config) { c.IdleLimit = time.Second }))
	r.rawPost(`{"stream":true}`) // and never reads, nor leaves
	if rec := r.seen.record(t); rec.Outcome != OutcomeClientGone {
		t.Errorf("outcome: got %s %v, want client_gone", rec.Outcome, rec.Err)
	}
	within(t, "upstream cancelled", gone)
	r.idle()
}

func TestConnectionIsAsNewAfterALongAnswer(t *testing.T) {
	t.Parallel()
	const limit = time.Second
	r := newRig(t, stream(strings.Repeat(chunk("x"), 500)), withConfig(func(c *Config) { c.IdleLimit = limit }))
	want := 500 * len(chunk("x"))
	for i := range 2 {
		time.Sleep(time.Duration(i) * limit * 5 / 4) // lets a deadline that was left behind pass
		if got := text(t, r.post(chatPath, `{}`)); len(got) != want {
			t.Errorf("answer %d: got %d bytes, want %d", i, len(got), want)
		}
	}
}
