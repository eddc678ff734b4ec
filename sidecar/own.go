package sidecar

import (
	"io"
	"net/http"

	"github.com/lull-project/lull/engine"
)

// ownAnswer goes to whoever asks whether this is a Lull.
const ownAnswer = `{"error":{"code":"` + engine.CodeOwnAddress + `","type":"invalid_request_error","message":"this is Lull itself, not the LLM server behind it"}}` + "\n"

// tellsItself answers requests that ask whether this is a Lull, and hands all
// others to next; they pay one look at their header.
func tellsItself(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.Header[engine.AskHeader]) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusMisdirectedRequest)
		_, _ = io.WriteString(w, ownAnswer)
	})
}
