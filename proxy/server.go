package proxy

import (
	"net/http"
	"time"
)

// Server is an http.Server with the limits that suit streams: none on the whole
// of a request or an answer, 30 s for a request's header, 2 minutes for an idle
// client connection. The caller sets ErrorLog and runs it.
func Server(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       2 * time.Minute,
	}
}
