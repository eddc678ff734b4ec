package proxy

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestOverheadLeavesOutWaitingForEverybody(t *testing.T) {
	t.Parallel()
	const pause = time.Second
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for range 2 {
			time.Sleep(pause) // what is measured is that this does not count
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n")
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, doneChunk)
	}, withGate(holds(pause)))
	began := time.Now()
	text(t, r.post(chatPath, `{"stream":true}`))
	rec := r.seen.record(t)
	if total := time.Since(began); total < 3*pause || rec.Overhead <= 0 || rec.Overhead > total/3 {
		t.Errorf("got overhead %v of %v, want more than 0 and none of the three waits of %v", rec.Overhead, total, pause)
	}
}

func TestOverheadLeavesOutAClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	const stall, size = time.Second, 32 << 20
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(make([]byte, size)) })
	res := r.post(chatPath, `{}`)
	time.Sleep(stall) // likewise
	if n, err := io.Copy(io.Discard, res.Body); n != size || err != nil {
		t.Fatalf("got %d bytes, %v, want %d", n, err, size)
	}
	rec := r.seen.record(t)
	if stalled := rec.End.Sub(rec.Arrived) - rec.Overhead; stalled < stall/2 {
		t.Errorf("got overhead %v of %v, want it to leave out the client's %v", rec.Overhead, rec.End.Sub(rec.Arrived), stall)
	}
}

// TestOverheadLeavesOutEveryWaitForTheUpstream: whichever part of an exchange the
// upstream takes its time for, it is not Lull's.
func TestOverheadLeavesOutEveryWaitForTheUpstream(t *testing.T) {
	t.Parallel()
	const pause = time.Second
	answer := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + chunk("a") + doneChunk
	for name, serve := range map[string]func(c net.Conn, br *bufio.Reader){
		"after an interim answer": func(c net.Conn, br *bufio.Reader) {
			_, _, _ = readRequest(br)
			_, _ = io.WriteString(c, "HTTP/1.1 102 Processing\r\n\r\n")
			time.Sleep(pause) // what is measured is that this does not count; likewise below
			_, _ = io.WriteString(c, answer)
		},
		"inside its header": func(c net.Conn, br *bufio.Reader) {
			_, _, _ = readRequest(br)
			_, _ = io.WriteString(c, answer[:20])
			time.Sleep(pause)
			_, _ = io.WriteString(c, answer[20:])
		},
		"before it takes the body": func(c net.Conn, br *bufio.Reader) {
			time.Sleep(pause)
			_, _, _ = readRequest(br)
			_, _ = io.WriteString(c, answer)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRigTo(t, rawServer(t, func(_ int, c net.Conn) { serve(c, bufio.NewReader(c)) }))
			began := time.Now()
			text(t, r.post(chatPath, `{"stream":true,"x":"`+strings.Repeat("x", 32<<20)+`"}`))
			rec := r.seen.record(t)
			if total := time.Since(began); total < pause || rec.Overhead > total-pause/2 {
				t.Errorf("got overhead %v of %v, want none of the upstream's %v", rec.Overhead, total, pause)
			}
		})
	}
}

// TestOverheadLeavesOutARestThatItsClientSendsSlowly: a body that is sent on while
// it comes goes at its client's pace.
func TestOverheadLeavesOutARestThatItsClientSendsSlowly(t *testing.T) {
	t.Parallel()
	const pause = time.Second
	r := newRig(t, stream(chunk("a"), doneChunk), withConfig(func(c *Config) { c.ScanBytes = 10 }))
	body, send := io.Pipe()
	go func() {
		_, _ = io.WriteString(send, `{"stream":true,"x":"aaaaaaaaaaaaaaaaa`)
		time.Sleep(pause) // likewise
		_, _ = io.WriteString(send, `"}`)
		_ = send.Close()
	}()
	began := time.Now()
	res, err := r.client.Post(r.server.URL+chatPath, "application/json", body)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text(t, res)
	rec := r.seen.record(t)
	if total := time.Since(began); total < pause || rec.Overhead > total-pause/2 {
		t.Errorf("got overhead %v of %v, want none of the client's %v", rec.Overhead, total, pause)
	}
}

// TestTimeOfAGateThatHeldNothingIsLullsOwn: what no account of held time has, the
// overhead must show.
func TestTimeOfAGateThatHeldNothingIsLullsOwn(t *testing.T) {
	const took = 50 * time.Millisecond
	for outcome, own := range map[string]bool{
		OutcomeForwarded: true, "": true, OutcomeRejectedCapacity: true,
		OutcomeHeldForwarded: false, OutcomeForwardedUnconfirmed: false, OutcomeRejectedDeadline: false,
	} {
		r := newRig(t, stream(doneChunk), withGate(gateFunc(func(ctx context.Context, q Request) Verdict {
			_ = holds(took).Admit(ctx, q)
			return Verdict{Forward: !strings.HasPrefix(outcome, "rejected"), Outcome: outcome}
		})))
		began := time.Now()
		text(t, r.post(chatPath, `{"stream":true}`))
		rec := r.seen.record(t)
		total := time.Since(began)
		if rec.Held < took || own && rec.Overhead < took || !own && rec.Overhead > total-took || (rec.Parked() == 0) != own {
			t.Errorf("%q: got overhead %v and %v parked of %v, want the gate's %v in the first: %v", outcome, rec.Overhead, rec.Parked(), total, took, own)
		}
	}
}

func TestOverheadOfAttemptsIsWhatIsLeftBesideTheUpstream(t *testing.T) {
	t0 := time.Unix(1000, 0)
	at := func(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }
	for name, c := range map[string]struct {
		at   times
		want int // ms waited, of an attempt that took 100
	}{
		"an answer":                        {times{wanted: at(1), got: at(11), wrote: at(20), first: at(95)}, 85},
		"an answer before the body's end":  {times{wanted: at(1), got: at(11), wrote: at(99), first: at(95)}, 94},
		"an answer just before it":         {times{wanted: at(1), got: at(91), wrote: at(96), first: at(95)}, 90},
		"an answer while the body goes on": {times{wanted: at(1), got: at(11), first: at(95)}, 94},
		"a body that is not taken":         {times{wanted: at(1), got: at(11), wrote: at(80), first: at(95)}, 94},
		"a header in parts":                {times{wanted: at(1), got: at(11), wrote: at(20), first: at(30)}, 90},
		"an interim answer":                {times{wanted: at(1), got: at(11), wrote: at(20), first: at(95), interim: true}, 90},
		"no answer":                        {times{wanted: at(1), got: at(11), wrote: at(20)}, 100},
		"no connection":                    {times{wanted: at(1)}, 100},
	} {
		c.at.read = c.at.first
		trip := &trip{at: c.at, now: func() time.Time { return at(100) }}
		if got := trip.waited(t0); got != time.Duration(c.want)*time.Millisecond {
			t.Errorf("%s: got %v waited, want %dms", name, got, c.want)
		}
	}
	x := &exchange{waited: time.Hour}
	x.rec.Arrived, x.rec.End = t0, at(5)
	if got := x.overhead(); got != 0 {
		t.Errorf("got %v, want 0 where waits overlap", got)
	}
	x.rec.Arrived = time.Time{}
	if got := x.overhead(); got != 0 {
		t.Errorf("got %v, want 0 for a request that was never read", got)
	}
}
