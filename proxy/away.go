package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

// ErrCut is the cause with which a server ends what it still serves. Cancel the
// BaseContext of the http.Server with it: requests without an answer yet get 503,
// answers under way break off, so that none looks complete.
var ErrCut = errors.New("lull stops and its drain limit has passed")

// isCut says that a request ends by ErrCut and not because its caller left.
func isCut(ctx context.Context) bool {
	return ctx.Err() != nil && errors.Is(context.Cause(ctx), ErrCut)
}

// cutShort ends a request whose answer has not begun.
func (x *exchange) cutShort() *ending {
	x.refuse(leaving(time.Second))
	return &ending{outcome: OutcomeCut, err: ErrCut}
}

// Draining is p when its process is about to end: it turns every request away
// with 503, and says in Retry-After when it will have ended at the latest. What p
// serves goes on.
func (p *Proxy) Draining(until time.Time) *Proxy {
	out := *p
	out.away = &turned{outcome: OutcomeDraining, until: until}
	return &out
}

// turned is a request that is answered without being read.
type turned struct {
	outcome string
	until   time.Time // of a drain
	message string
}

// turnsAway says what a request is turned away for; nil lets it in.
func (p *Proxy) turnsAway(r *http.Request) *turned {
	if p.away != nil {
		return p.away
	}
	if len(p.cfg.Keys) == 0 || r.Method == http.MethodOptions && !wantsUpgrade(r.Header) {
		return nil // a preflight has no key and asks for nothing
	}
	key := CallersKey(r.Header)
	if p.knows(key) {
		return nil
	}
	if key == "" {
		return &turned{outcome: OutcomeUnauthorized, message: "no API key came; send one that Lull knows as Authorization: Bearer KEY"}
	}
	return &turned{outcome: OutcomeUnauthorized, message: "Lull does not know this API key; ask its operator for one"}
}

// turnAway answers a request unread and accounts for it as for any other.
func (p *Proxy) turnAway(w http.ResponseWriter, r *http.Request, d dialect, t *turned) {
	rec := Record{ID: p.newID(), RequestID: callersID(r.Header), Path: r.URL.Path, Engine: p.upstreams[p.pick()].name, Outcome: t.outcome, Arrived: p.cfg.Now()}
	if rec.RequestID == "" {
		rec.RequestID = rec.ID
	}
	f := refusal{status: http.StatusUnauthorized, kind: "authentication_error", code: CodeUnauthorized, message: "lull: " + t.message}
	if t.outcome == OutcomeDraining {
		f = leaving(t.until.Sub(rec.Arrived))
	}
	rec.Status = f.status
	f.closes = leaveUnread(w, r, f)
	f.write(w, rec.RequestID, d)
	if d == nil || p.observer == nil {
		return
	}
	rec.End = p.cfg.Now()
	p.safely(func() { p.observer.Done(rec) })
}

const (
	// unreadGrace is how long a caller that is turned away may take for its body.
	unreadGrace = 2 * time.Second
	// unreadBytes is what of it is taken in; net/http's own limit, so that it need not
	// read more.
	unreadBytes = 256 << 10
)

// leaveUnread takes in a body that nobody reads, and says whether the connection
// must end with the answer because it did not come. net/http would wait for it
// without a limit before it sends the answer: a caller that sends nothing would keep
// its connection for ever.
func leaveUnread(w http.ResponseWriter, r *http.Request, f refusal) (closes bool) {
	if r.ContentLength == 0 {
		return f.closes
	}
	// The errors are those of writers without deadlines.
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(unreadGrace))
	if f.closes || r.Header.Get("Expect") != "" { // to read would ask for the body
		return true
	}
	if _, err := io.CopyN(io.Discard, r.Body, unreadBytes); err != io.EOF {
		return true
	}
	_ = rc.SetReadDeadline(time.Time{})
	return false
}

// leaving is the answer of a process that is about to end.
func leaving(after time.Duration) refusal {
	return refusal{
		status: http.StatusServiceUnavailable, kind: "server_error", code: CodeDraining,
		message: "lull: this process is stopping; try again, on another one if there is any", retryAfter: max(after, time.Second), closes: true,
	}
}
