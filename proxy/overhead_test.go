package proxy

import (
	"io"
	"net/http"
	"testing"
	"time"
)

func TestOverheadLeavesOutWaitingForEverybody(t *testing.T) {
	const pause = 300 * time.Millisecond
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
	text(t, r.post(chatPath, `{"stream":true}`))
	rec := r.seen.record(t)
	if total := rec.End.Sub(rec.Arrived); total < 3*pause || rec.Overhead <= 0 || rec.Overhead > total/3 {
		t.Errorf("got overhead %v of %v, want more than 0 and none of the three waits of %v", rec.Overhead, total, pause)
	}
}

func TestOverheadLeavesOutAClientThatDoesNotRead(t *testing.T) {
	const stall, size = 300 * time.Millisecond, 32 << 20
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

// An interim answer is no answer: the upstream goes on computing after it.
func TestOverheadLeavesOutWaitingAfterAnInterimAnswer(t *testing.T) {
	const pause = 300 * time.Millisecond
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		time.Sleep(pause) // what is measured is that this does not count
		_, _ = io.WriteString(w, "{}")
	})
	text(t, r.post(chatPath, `{}`))
	rec := r.seen.record(t)
	if total := rec.End.Sub(rec.Arrived); total < pause || rec.Overhead > total/3 {
		t.Errorf("got overhead %v of %v, want none of the %v after the interim answer", rec.Overhead, total, pause)
	}
}

func TestOverheadOfAttemptsIsWhatIsLeftBesideTheUpstream(t *testing.T) {
	t0 := time.Unix(1000, 0)
	at := func(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }
	for name, c := range map[string]struct {
		at   times
		want int // ms waited, of an attempt that took 100
	}{
		"an answer":                        {times{wanted: at(1), got: at(11), wrote: at(20), first: at(90)}, 80},
		"an answer before the body's end":  {times{wanted: at(1), got: at(11), wrote: at(99), first: at(90)}, 10},
		"an answer while the body goes on": {times{wanted: at(1), got: at(11), first: at(90)}, 89},
		"an interim answer":                {times{wanted: at(1), got: at(11), wrote: at(20), interim: at(30), first: at(30)}, 90},
		"no answer":                        {times{wanted: at(1), got: at(11), wrote: at(20)}, 100},
		"no connection":                    {times{wanted: at(1)}, 100},
	} {
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
