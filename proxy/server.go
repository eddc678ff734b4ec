package proxy

import (
	"net/http"
	"time"
)

// Server is an http.Server with the limits that suit streams: none on the whole
// of a request or an answer, 30 s for a request's header, 2 minutes for an idle
// client connection. It speaks HTTP/1.1, and HTTP/2 without TLS to clients that
// begin with it. The caller sets ErrorLog and runs it.
func Server(h http.Handler) *http.Server {
	var speaks http.Protocols
	speaks.SetHTTP1(true)
	speaks.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           h,
		Protocols:         &speaks,
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       2 * time.Minute,
	}
}
