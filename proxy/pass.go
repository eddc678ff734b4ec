package proxy

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
)

// pass relays what is not interpreted, unchanged: any method, path and body,
// upgrades, trailers and interim responses.
func (p *Proxy) pass(w http.ResponseWriter, r *http.Request) {
	p.passing.Add(1)
	defer p.passing.Add(-1)
	// An answer may begin before the request has ended, or before the transport has
	// seen that it has: without this the server takes the rest of the body from
	// under the transport, which then breaks the answer.
	_ = http.NewResponseController(w).EnableFullDuplex()
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	r = r.WithContext(context.WithValue(ctx, cancelKey{}, cancel))
	// Unless the upstream sends one: the server must not guess it from the body.
	// ReverseProxy copies no empty field, so shapeAnswer cannot say this here.
	w.Header()["Content-Type"] = nil
	p.passes[p.pick()].ServeHTTP(w, r)
}

// cancelKey carries a request's cancel to its idle limit.
type cancelKey struct{}

func (p *Proxy) newPass(to *url.URL) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport:     p.transport,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		BufferPool:    bufferPool{p},
		Rewrite: func(pr *httputil.ProxyRequest) {
			query := pr.In.URL.RawQuery
			pr.SetURL(to)
			pr.Out.URL.RawQuery = query // as it came, also where it does not parse
			id := callersID(pr.In.Header)
			if id == "" {
				id = p.newID()
			}
			shapeRequest(pr.Out.Header, id)
		},
		ModifyResponse: p.shapePassed,
		ErrorHandler:   p.passFailed,
	}
}

// shapePassed prepares an answer and puts the idle limit on its body. An
// upgraded connection has none: silence is normal there.
func (p *Proxy) shapePassed(res *http.Response) error {
	if res.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	shapeAnswer(res.Header, res.Request.Header.Get("X-Request-Id"))
	cancel, _ := res.Request.Context().Value(cancelKey{}).(context.CancelCauseFunc)
	if cancel != nil {
		res.Body = newIdleBody(res.Body, p.cfg.IdleLimit, cancel, nil)
	}
	return nil
}

func (p *Proxy) passFailed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // nobody is there to answer
	}
	unreachable(err).write(w, r.Header.Get("X-Request-Id"))
}

// bufferPool lends the relay's buffers to ReverseProxy.
type bufferPool struct{ p *Proxy }

func (b bufferPool) Get() []byte { return b.p.buffers.Get().(*[relayBuffer]byte)[:] }

func (b bufferPool) Put(buf []byte) { b.p.buffers.Put((*[relayBuffer]byte)(buf)) }
