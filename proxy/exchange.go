package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/lull-project/lull/proxy/arrival"
)

// exchange is one interpreted request, from arrival to account. All of it runs
// on the HTTP server's goroutine.
type exchange struct {
	p  *Proxy
	w  http.ResponseWriter
	rc *http.ResponseController
	r  *http.Request
	d  dialect
	up upstream

	upload upload
	body   body
	header http.Header // for the upstream
	asked  bool        // for usage, by Lull
	strip  *usageStrip // nil where nothing is stripped
	tap    *tap        // nil before the answer, and after a fault
	rec    Record
	lay    time.Duration  // from the request's last byte in the kernel to Arrived
	waited time.Duration  // for the upstream, or for a client that does not read
	hop    []string       // what the answer's Connection named
	clock  *arrival.Clock // of the upstream's connection
	closed bool           // the account is closed

	cancel      context.CancelCauseFunc // ends the upstream's request
	writeLimit  time.Time               // the write deadline now set
	limitsWrite bool
}

// ending is how an exchange ended: its outcome, what broke it, and whether the
// client's transfer must be broken because it cannot be told otherwise.
type ending struct {
	outcome string
	err     error
	abort   bool
}

// interpret serves a request on a known path. The account is closed in one
// deferred place, for every way out, panics included.
func (p *Proxy) interpret(w http.ResponseWriter, r *http.Request, d dialect) {
	x := &exchange{p: p, w: w, rc: http.NewResponseController(w), r: r, d: d, up: p.upstreams[p.pick()]}
	x.upload.body, x.upload.rc, x.upload.limit = r.Body, x.rc, p.cfg.IdleLimit
	p.cleanTrailer(r) // of what is announced
	x.upload.ends = func() { p.cleanTrailer(r) }
	p.inFlight.Add(1)
	x.up.take()
	ctx, cancel := context.WithCancelCause(r.Context())
	x.cancel = cancel
	var end ending
	defer func() {
		if v := recover(); v != nil {
			end = ending{outcome: OutcomeInternal, err: fmt.Errorf("proxy: panic while serving: %v", v), abort: true}
		}
		cancel(nil)
		x.upload.end()
		p.bodies.give(x.body.taken)
		x.up.give()
		x.account(end)
		if end.abort {
			// The server must break the transfer: no good ending is made up.
			breakOff(w, r)
			panic(http.ErrAbortHandler)
		}
	}()
	end = x.serve(ctx)
}

// serve goes through the stages of a request; each may end it.
func (x *exchange) serve(ctx context.Context) ending {
	req, end := x.read()
	if end != nil {
		return *end
	}
	if end := x.admit(req); end != nil {
		return *end
	}
	res, end := x.forward(ctx)
	if end != nil {
		return *end
	}
	return x.relay(ctx, res)
}

// read reads the request and scans it.
func (x *exchange) read() (Request, *ending) {
	x.rec.ID, x.rec.Path, x.rec.Engine = x.p.newID(), x.r.URL.Path, x.up.name
	if x.rec.RequestID = callersID(x.r.Header); x.rec.RequestID == "" {
		x.rec.RequestID = x.rec.ID
	}
	x.header = x.p.outgoingHeader(x.r.Header, x.rec.RequestID)
	scan := newRequestScan(x.d)
	b, err := readBody(&x.upload, x.r.ContentLength, x.p.cfg.ScanBytes, x.p.cfg.MaxBodyBytes, &x.p.bodies, func(piece []byte) {
		x.p.safely(func() { scan.json.write(piece) })
	})
	x.upload.pause()
	x.body = b
	x.rec.RequestBytes = int64(len(b.read))
	x.rec.Arrived = x.p.cfg.Now()
	x.lay = arrivals(x.r).Age()
	if err != nil {
		return Request{}, x.unreadable(err)
	}
	if b.replayable() {
		arrivals(x.r).Served()
	} else {
		_ = x.rc.EnableFullDuplex() // the rest is read while the answer may begin
	}
	req := Request{ID: x.rec.ID, Path: x.rec.Path, Engine: x.up.name, Sequences: 1, ArrivedAt: x.rec.Arrived}
	scan.fill(&req)
	if d, ok := x.d.(pathNamed); ok {
		req.Model = d.model(x.r.URL.Path)
	}
	x.askUsage(scan)
	x.rec.Model, x.rec.PromptBytes = req.Model, req.PromptBytes
	x.rec.MaxTokens, x.rec.Sequences = req.MaxTokens, req.Sequences
	return req, nil
}

// unreadable ends a request whose body did not come whole.
func (x *exchange) unreadable(err error) *ending {
	f := badBody(http.StatusBadRequest, err)
	switch {
	case errors.Is(err, errBodyTooLarge):
		f = badBody(http.StatusRequestEntityTooLarge, err)
		f.code, f.message = CodeTooLarge, "lull: "+err.Error()
	case errors.Is(err, errUploadIdle):
		// Before the next case: the failed read has ended the request's context too.
		f.status = http.StatusRequestTimeout
	case isCut(x.r.Context()):
		return x.cutShort()
	case isDisconnect(err) || x.r.Context().Err() != nil:
		return &ending{outcome: OutcomeClientGone, err: err, abort: true}
	}
	x.refuse(f)
	return &ending{outcome: OutcomeRequestUnreadable, err: err}
}

// admit waits for the Gate.
func (x *exchange) admit(req Request) *ending {
	v := x.p.admit(x.r.Context(), req)
	x.rec.Admission = v.Outcome
	x.rec.Held = x.p.cfg.Now().Sub(x.rec.Arrived)
	if end := x.ended(); end != nil {
		return end
	}
	if v.Forward {
		return nil
	}
	if next, ok := x.p.beside(x.up); ok { // no byte of it has gone anywhere
		x.moveTo(next)
		x.rec.Admission = OutcomeRerouted
		return nil
	}
	x.refuse(refuseVerdict(v))
	return &ending{outcome: v.Outcome}
}

// forward sends the request and waits for the answer's header.
func (x *exchange) forward(ctx context.Context) (*http.Response, *ending) {
	if limit := x.p.cfg.FirstByteLimit; limit > 0 {
		t := time.AfterFunc(limit, func() { x.cancel(errFirstByte) })
		defer t.Stop()
	}
	x.rec.Forwarded = x.p.cfg.Now()
	res, err := x.send(ctx)
	for tries := 1; err != nil && tries < len(x.p.upstreams) && x.elsewhere(ctx, err); tries++ {
		res, err = x.send(ctx)
	}
	if err == nil {
		if err = refuseStatus(res.StatusCode); err == nil {
			x.rec.Headers = x.p.cfg.Now()
			x.up.health.answered(res.StatusCode)
			return res, nil
		}
		res.Body.Close()
	}
	if x.upload.idled() { // while the rest of its body was sent on
		return nil, x.unreadable(errUploadIdle)
	}
	if errors.Is(err, errBodyTooLarge) { // likewise
		return nil, x.unreadable(errBodyTooLarge)
	}
	if end := x.ended(); end != nil {
		return nil, end
	}
	if context.Cause(ctx) == errFirstByte {
		x.refuse(refusal{
			status: http.StatusGatewayTimeout, kind: "upstream_error", code: CodeTimeout,
			message: "lull: " + errFirstByte.Error(),
		})
		return nil, &ending{outcome: OutcomeUpstreamTimeout, err: errFirstByte}
	}
	x.refuse(unreachable(err))
	return nil, &ending{outcome: OutcomeUpstreamUnreachable, err: err}
}

// errFirstByte is the cause of a request cancelled before headers.
var errFirstByte = errors.New("upstream sent no header within proxy.first_byte_limit")

// ended is the ending of a request whose caller has left or which was cut before
// its answer began; nil while neither is so.
func (x *exchange) ended() *ending {
	err := x.r.Context().Err()
	switch {
	case err == nil:
		return nil
	case isCut(x.r.Context()):
		return x.cutShort()
	}
	return &ending{outcome: OutcomeClientGone, err: err, abort: true}
}

func (x *exchange) refuse(f refusal) {
	x.rec.Status = f.status
	f.write(x.w, x.rec.RequestID, x.d)
}

// target is the upstream's URL for a client's.
func (u upstream) target(in *url.URL) *url.URL {
	out := *in
	pr := httputil.ProxyRequest{Out: &http.Request{URL: &out}}
	pr.SetURL(u.url)
	return &out
}
