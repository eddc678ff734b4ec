package proxy

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// deadlines is a client's connection that keeps its write deadline.
type deadlines struct {
	http.ResponseWriter
	until time.Time
	set   int
}

func (d *deadlines) Write(b []byte) (int, error) { return len(b), nil }

func (d *deadlines) SetWriteDeadline(until time.Time) error {
	d.until = until
	d.set++
	return nil
}

// TestPassedAnswerMayRestAWholeIdleLimitAfterAnyWrite, however its writes lie.
func TestPassedAnswerMayRestAWholeIdleLimitAfterAnyWrite(t *testing.T) {
	const limit = time.Minute
	for _, between := range []time.Duration{0, time.Second, limit / 3, limit / 2, limit - 1, limit} {
		synctest.Test(t, func(t *testing.T) {
			d := &deadlines{}
			w := &passWriter{ResponseWriter: d, rc: http.NewResponseController(d), limit: limit}
			for range 1000 {
				if _, err := w.Write([]byte("x")); err != nil {
					t.Fatal(err)
				}
				if left := time.Until(d.until); left < limit || left > limit+limit/2 {
					t.Fatalf("%v between writes: %v left after one, want %v to half as much again", between, left, limit)
				}
				time.Sleep(between)
			}
			if most := 2 + int(1000*between/(limit/2)); d.set > most {
				t.Errorf("%v between writes: the deadline was set %d times, want at most %d", between, d.set, most)
			}
			if w.done(); !d.until.IsZero() {
				t.Errorf("got the deadline %v on the next request, want none", d.until)
			}
		})
	}
}
