package proxy

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/lull-project/lull/proxy/arrival"
)

// Server is an http.Server with the limits that suit streams: none on the whole
// of a request or an answer, 30 s for a request's header, 2 minutes for an idle
// client connection. It speaks HTTP/1.1, and HTTP/2 without TLS to clients that
// begin with it. The caller sets ErrorLog and runs it, on a listener of arrival.Listen
// if Record.Overhead is to begin when requests come.
func Server(h http.Handler) *http.Server {
	var speaks http.Protocols
	speaks.SetHTTP1(true)
	speaks.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           h,
		Protocols:         &speaks,
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if clock := arrival.Of(c); clock != nil {
				return context.WithValue(ctx, clockKey{}, clock)
			}
			return ctx
		},
	}
}

type clockKey struct{}

// arrivals is the clock of a request's connection; nil where it has none, and for
// HTTP/2, whose connections carry many requests at once.
func arrivals(r *http.Request) *arrival.Clock {
	if r.ProtoMajor != 1 {
		return nil
	}
	clock, _ := r.Context().Value(clockKey{}).(*arrival.Clock)
	return clock
}
