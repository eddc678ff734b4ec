package proxy

import (
	"net/http"
	"time"
)

// passWriter is the client's side of a passed answer: a write on which nothing
// moves for the idle limit, and at most half of one more, fails.
type passWriter struct {
	http.ResponseWriter
	rc      *http.ResponseController
	limit   time.Duration
	until   time.Time
	interim bool // the client may get 1xx answers
}

// Write keeps the deadline between one and one and a half limits ahead: a call
// for each event would cost more than the write.
func (w *passWriter) Write(b []byte) (int, error) {
	if now := time.Now(); w.until.Sub(now) < w.limit {
		w.until = now.Add(w.limit + w.limit/2)
		_ = w.rc.SetWriteDeadline(w.until) // HTTP/2 and tests without one have no deadline
	}
	return w.ResponseWriter.Write(b)
}

// WriteHeader leaves out what the client's protocol does not have, and the
// upstream's 100: the transport reads the body when it comes, and that read makes
// net/http send the client its own. Both would be two (and a race which is first).
func (w *passWriter) WriteHeader(code int) {
	interim := code >= 100 && code < 200 && code != http.StatusSwitchingProtocols
	if code == http.StatusContinue || interim && !w.interim {
		return
	}
	if interim {
		dropHop(w.Header()) // ReverseProxy does so with the last answer only
	}
	w.ResponseWriter.WriteHeader(code)
}

// done leaves the connection as it was, for its next request.
func (w *passWriter) done() {
	if !w.until.IsZero() {
		_ = w.rc.SetWriteDeadline(time.Time{})
	}
}

// Unwrap lets http.ResponseController flush and hijack.
func (w *passWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
