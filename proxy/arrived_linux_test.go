//go:build linux && (amd64 || arm64)

package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"testing"
	"time"

	"github.com/lull-project/lull/proxy/arrival"
)

// lateListener takes connections in late, after their request was sent.
type lateListener struct {
	net.Listener
	sent <-chan struct{}
	by   time.Duration
}

func (l lateListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		<-l.sent
		time.Sleep(l.by) // what is measured is that this counts
	}
	return c, err
}

// stamping waits until the kernel stamps packets, which it begins a moment after the
// first socket has asked for it; while l is open it does not end.
func stamping(t *testing.T, l net.Listener) {
	t.Helper()
	for end := time.Now().Add(wait); ; {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		served, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, "warm")
		_, err = served.Read(make([]byte, 4))
		known := arrival.Of(served).Age() > 0
		c.Close()
		served.Close()
		switch {
		case err != nil:
			t.Fatal(err)
		case known:
			return
		case time.Now().After(end):
			t.Fatal("got no stamp of a packet, want one: this kernel has them")
		}
	}
}

// TestOverheadBeginsWhenTheKernelHasTheRequest: a client waits for a process that has
// not read yet as for one that computes.
func TestOverheadBeginsWhenTheKernelHasTheRequest(t *testing.T) {
	const late = time.Second
	r := newRig(t, stream(doneChunk))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stamped := arrival.Listen(l)
	stamping(t, stamped)
	server := Server(r.proxy)
	ended, sent := make(chan error), make(chan struct{})
	go func() { ended <- server.Serve(lateListener{stamped, sent, late}) }()
	defer func() { server.Close(); <-ended }()
	began := time.Now()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, "POST "+chatPath+" HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
	close(sent)
	rec := r.seen.record(t)
	if rec.Overhead < late*9/10 || rec.Overhead > time.Since(began) {
		t.Errorf("got overhead %v, want the %v for which the request lay unread", rec.Overhead, late)
	}
	if total := rec.End.Sub(rec.Arrived); total >= late {
		t.Errorf("got %v from the request read to its end, want that without the %v before", total, late)
	}
}

// TestWaitForTheUpstreamEndsWhenTheKernelHasItsAnswer has an answer that lies unread.
func TestWaitForTheUpstreamEndsWhenTheKernelHasItsAnswer(t *testing.T) {
	const late = time.Second
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	stamping(t, arrival.Listen(l))
	plain, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn := arrival.Stamped(plain)
	defer conn.Close()
	upstream, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer upstream.Close()
	trip := &trip{now: time.Now}
	hooks := trip.timed(trip.trace())
	hooks.GetConn("")
	hooks.GotConn(httptrace.GotConnInfo{Conn: conn})
	wrote := time.Now()
	hooks.WroteRequest(httptrace.WroteRequestInfo{})
	if _, err := io.WriteString(upstream, "HTTP/1.1 200 OK\r\n"); err != nil {
		t.Fatal(err)
	}
	sent := time.Since(wrote)
	time.Sleep(late) // what is measured is that this is no wait for the upstream
	if _, err := conn.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	hooks.GotFirstResponseByte()
	// Only the scheduling of these lines is beside what was waited.
	if got := trip.waited(wrote); got > sent+late/2 {
		t.Errorf("got %v waited, want about the %v until the answer had come", got, sent)
	}
}

// TestPipelinedRequestDoesNotCountTheOneBeforeIt: it came early and waits its turn.
func TestPipelinedRequestDoesNotCountTheOneBeforeIt(t *testing.T) {
	t.Parallel()
	const pause = time.Second
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		time.Sleep(pause) // what is measured is that this does not count
		_, _ = io.WriteString(w, "{}")
	})
	c := r.rawPost("{}")
	_, _ = io.WriteString(c, "POST "+chatPath+" HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
	br := bufio.NewReader(c)
	for range 2 {
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		text(t, res)
		if rec := r.seen.record(t); rec.Overhead <= 0 || rec.Overhead > pause/2 {
			t.Errorf("got overhead %v, want more than 0 and no wait of %v", rec.Overhead, pause)
		}
	}
}

// TestClientThatSentItsNextRequestAndLeftIsNoticedWhileHeld: net/http stops looking
// when a next request begins.
func TestClientThatSentItsNextRequestAndLeftIsNoticedWhileHeld(t *testing.T) {
	for name, leave := range map[string]func(c net.Conn){
		"closes": func(c net.Conn) { c.Close() },
		"resets": func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0); c.Close() },
	} {
		held := make(chan struct{})
		r := newRig(t, stream(doneChunk), withGate(gateFunc(func(ctx context.Context, _ Request) Verdict {
			held <- struct{}{}
			<-ctx.Done()
			return Verdict{Forward: true, Outcome: OutcomeHeldForwarded}
		})))
		c := r.rawPost("{}")
		<-held
		_, _ = io.WriteString(c, "POST "+chatPath+" HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n")
		leave(c)
		if rec := r.seen.record(t); rec.Outcome != OutcomeClientGone {
			t.Errorf("%s: got %s, want client_gone", name, rec.Outcome)
		}
		r.idle()
	}
}

// TestPassedRequestWhoseClientSentTheNextAndLeftIsCancelled is the same for what is
// not interpreted.
func TestPassedRequestWhoseClientSentTheNextAndLeftIsCancelled(t *testing.T) {
	came, gone := make(chan struct{}), make(chan struct{})
	r := newRig(t, func(_ http.ResponseWriter, r *http.Request) {
		close(came)
		<-r.Context().Done()
		close(gone)
	})
	c, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(c, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
	<-came
	_, _ = io.WriteString(c, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
	c.Close()
	select {
	case <-gone:
	case <-time.After(wait):
		t.Fatal("the upstream's request goes on")
	}
}

// TestNextRequestThatComesWhileOneIsHeldIsServed: nothing of it may be lost.
func TestNextRequestThatComesWhileOneIsHeldIsServed(t *testing.T) {
	held, goes := make(chan struct{}), make(chan struct{})
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }, withGate(gateFunc(func(context.Context, Request) Verdict {
		held <- struct{}{}
		<-goes
		return Verdict{Forward: true, Outcome: OutcomeHeldForwarded}
	})))
	c := r.rawPost(`{"n":0}`)
	br := bufio.NewReader(c)
	for i := range 50 {
		<-held
		body := fmt.Sprintf(`{"n":%d}`, i+1)
		_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(body), body)
		goes <- struct{}{}
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		if got, want := text(t, res), fmt.Sprintf(`{"n":%d}`, i); got != want {
			t.Fatalf("request %d: got %q, want %q", i, got, want)
		}
	}
	<-held
	goes <- struct{}{}
	res, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	text(t, res)
}
