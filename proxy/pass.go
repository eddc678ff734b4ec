package proxy

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"time"
)

// pass relays what is not interpreted, unchanged: any method, path and body,
// upgrades, trailers and interim responses.
func (p *Proxy) pass(w http.ResponseWriter, r *http.Request) {
	p.passing.Add(1)
	defer p.passing.Add(-1)
	// An answer may begin before the request has ended, or before the transport has
	// seen that it has: without this the server takes the rest of the body from
	// under the transport, which then breaks the answer.
	rc := http.NewResponseController(w)
	_ = rc.EnableFullDuplex()
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	to := p.pick()
	x := &passed{cancel: cancel, url: r.URL, up: p.upstreams[to]}
	x.up.take()
	defer func() { x.up.give() }()
	r = r.WithContext(context.WithValue(ctx, passedKey{}, x)) // a copy
	r.Header = withoutHTTPUpgrade(r.Header)
	defer func() {
		if v := recover(); v != nil {
			breakOff(w, r)
			panic(v)
		}
	}()
	if r.Body != nil && r.Body != http.NoBody && !wantsUpgrade(r.Header) {
		p.cleanTrailer(r) // of what is announced
		x.upload = &upload{body: r.Body, rc: rc, limit: p.cfg.IdleLimit, ends: func() { p.cleanTrailer(r) }}
		defer x.upload.end()
		r.Body = passedBody{x.upload, r.Body}
	} else if !wantsUpgrade(r.Header) {
		arrivals(r).Served()
	}
	// Unless the upstream sends one: the server must not guess it from the body.
	// ReverseProxy copies no empty field, so shapeAnswer cannot say this here.
	w.Header()["Content-Type"] = nil
	out := &passWriter{ResponseWriter: w, rc: rc, limit: p.cfg.IdleLimit, interim: takesInterim(r)}
	p.passes[to].ServeHTTP(out, r)
	out.done()
}

// passedBody is a body under the idle limit.
type passedBody struct {
	io.Reader
	io.Closer
}

// passed is what ReverseProxy's hooks must know of a request; its context carries
// it under passedKey.
type passed struct {
	cancel context.CancelCauseFunc
	url    *url.URL // the client's
	upload *upload  // nil without a body
	up     upstream // that serves it now
}

type passedKey struct{}

func (p *Proxy) newPass(to upstream) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport:     passTransport{p, to},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		BufferPool:    bufferPool{p},
		Rewrite: func(pr *httputil.ProxyRequest) {
			query := pr.In.URL.RawQuery
			pr.SetURL(to.url)
			pr.Out.URL.RawQuery = query    // as it came, also where it does not parse
			pr.Out.Trailer = pr.In.Trailer // the map that the server fills at the body's end
			id := callersID(pr.In.Header)
			if id == "" {
				id = p.newID()
			}
			if p.cfg.TrustForwarded {
				restoreForwarded(pr.Out.Header, pr.In.Header)
			}
			p.identify(pr.Out.Header)
			shapeRequest(pr.Out.Header, id)
		},
		ModifyResponse: p.shapePassed,
		ErrorHandler:   p.passFailed,
	}
}

// passTransport sends what is passed to its upstream, or to the next one where that
// cannot be dialled. A request with a body goes nowhere else: the body is not kept.
type passTransport struct {
	p  *Proxy
	to upstream
}

// RoundTrip makes passTransport an http.RoundTripper.
func (t passTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	to, ctx := t.to, r.Context()
	for tries := 1; ; tries++ {
		res, err := to.roundTrip(r)
		if err == nil {
			to.health.answered(res.StatusCode)
			to.turnHome(res.Header)
			return res, nil
		}
		x, known := ctx.Value(passedKey{}).(*passed)
		bodiless := r.Body == nil || r.Body == http.NoBody
		next, ok := t.p.nextAfter(ctx, to, err)
		if !ok || !known || !bodiless || tries >= len(t.p.upstreams) {
			return nil, err
		}
		to.give()
		next.take()
		x.up = next
		to, r = next, r.WithContext(ctx) // a copy
		r.URL = to.target(x.url)
		t.p.reroutes.Add(1)
	}
}

// roundTrip sends a request, and keeps what Connection names out of an answer's
// trailers; it leaves the header to ReverseProxy.
func (u upstream) roundTrip(r *http.Request) (*http.Response, error) {
	var head *answerHead
	res, err := u.transport.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) { head = headOf(i.Conn); head.expect() },
	})))
	if err != nil {
		return nil, err
	}
	head.restore(res)
	if res.StatusCode != http.StatusSwitchingProtocols { // whose body is the connection
		b := &trailedBody{ReadCloser: res.Body, res: res, names: connectionNames(res.Header)}
		b.clean()
		res.Body = b
	}
	return res, nil
}

// trailedBody cleans the trailers of its answer, which come with the body's end.
type trailedBody struct {
	io.ReadCloser
	res   *http.Response
	names []string
}

func (b *trailedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.clean()
	}
	return n, err
}

func (b *trailedBody) clean() { dropNamed(b.res.Trailer, b.names) }

// shapePassed prepares an answer and puts the idle limit on its body. An
// upgraded connection has none: silence is normal there.
func (p *Proxy) shapePassed(res *http.Response) error {
	if res.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	if err := refuseStatus(res.StatusCode); err != nil {
		return err
	}
	shapeAnswer(res.Header, res.Request.Header.Get("X-Request-Id"))
	if x, ok := res.Request.Context().Value(passedKey{}).(*passed); ok {
		res.Body = newIdleBody(res.Body, p.cfg.IdleLimit, x.cancel, nil)
	}
	return nil
}

func (p *Proxy) passFailed(w http.ResponseWriter, r *http.Request, err error) {
	if x, ok := r.Context().Value(passedKey{}).(*passed); ok && x.upload != nil && x.upload.idled() {
		badBody(http.StatusRequestTimeout, errUploadIdle).write(w, r.Header.Get("X-Request-Id"), nil)
		return
	}
	if isCut(r.Context()) {
		leaving(time.Second).write(w, r.Header.Get("X-Request-Id"), nil)
		return
	}
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // nobody is there to answer
	}
	unreachable(err).write(w, r.Header.Get("X-Request-Id"), nil)
}

// bufferPool lends the relay's buffers to ReverseProxy.
type bufferPool struct{ p *Proxy }

func (b bufferPool) Get() []byte { return b.p.buffers.Get().(*[relayBuffer]byte)[:] }

func (b bufferPool) Put(buf []byte) { b.p.buffers.Put((*[relayBuffer]byte)(buf)) }
