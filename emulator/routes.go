package emulator

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lull-project/lull/size"
)

// version is what /version answers; it says that this is no vLLM.
const version = "0.32.0+lull.emulated"

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	for _, route := range []struct {
		method, path string
		serve        http.Handler
	}{
		{"POST", "/v1/chat/completions", s.complete(true)},
		{"POST", "/v1/completions", s.complete(false)},
		{"GET", "/v1/models", http.HandlerFunc(s.models)},
		{"GET", "/health", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})},
		{"GET", "/version", fixed(http.StatusOK, `{"version":"`+version+`"}`)},
		{"GET", "/metrics", s.metrics()},
		{"GET", "/lull/state", http.HandlerFunc(s.getState)},
		{"PUT", "/lull/kv_bound", http.HandlerFunc(s.putBound)},
	} {
		mux.Handle(route.method+" "+route.path, route.serve)
		mux.Handle(route.path, fixed(http.StatusMethodNotAllowed, `{"detail":"Method Not Allowed"}`))
	}
	mux.Handle("/", fixed(http.StatusNotFound, `{"detail":"Not Found"}`))
	return mux
}

// fixed always answers the same.
func fixed(status int, body string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, status, []byte(body)) })
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	s.encode(w, http.StatusOK, map[string]any{"object": "list", "data": []any{map[string]any{
		"id": s.cfg.Model, "object": "model", "created": s.created(), "owned_by": "lull",
		"root": s.cfg.Model, "parent": nil, "max_model_len": s.cfg.MaxModelLen,
	}}})
}

func (s *Server) metrics() http.Handler {
	labels := prometheus.Labels{"model_name": s.cfg.Model, "engine": "0"}
	registry := prometheus.NewRegistry()
	registry.MustRegister(newFigures(s.engine, s.cfg, labels))
	registry.MustRegister(s.engine.times.collectors()...)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{DisableCompression: true})
}

func (s *Server) getState(w http.ResponseWriter, _ *http.Request) {
	s.encode(w, http.StatusOK, s.engine.State())
}

// putBound moves the bound. An epoch older than the one in force is refused
// with what is in force; the same epoch may come again.
func (s *Server) putBound(w http.ResponseWriter, r *http.Request) {
	var b struct {
		Epoch *uint64 `json:"epoch"`
		Bytes *int64  `json:"bytes"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&b); err != nil {
		badRequest("", "the body is no valid bound: %v", err).write(w)
		return
	}
	if b.Epoch == nil || b.Bytes == nil || *b.Bytes < 0 {
		badRequest("bytes", "want epoch and bytes, both whole numbers of at least 0").write(w)
		return
	}
	reply, ok := s.engine.setBound(r.Context(), *b.Epoch, size.Bytes(*b.Bytes))
	switch {
	case !ok:
		engineError(errEngineEnded.Error()).write(w)
	case reply.older:
		s.encode(w, http.StatusConflict, struct {
			boundReply
			Error *apiError `json:"error"`
		}{reply, &apiError{
			Message: fmt.Sprintf("epoch %d is older than %d, which is in force; the bound stays", *b.Epoch, reply.Epoch),
			Type:    "Conflict", Code: http.StatusConflict,
		}})
	default:
		s.encode(w, http.StatusOK, reply)
	}
}

func (s *Server) encode(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		engineError(err.Error()).write(w)
		return
	}
	writeJSON(w, status, b)
}

// answerID names an answer after the client's X-Request-Id, if it is plain.
func (s *Server) answerID(r *http.Request, a ask) string {
	prefix := "cmpl-"
	if a.chat {
		prefix = "chatcmpl-"
	}
	id := r.Header.Get("X-Request-Id")
	if id == "" || len(id) > 128 || strings.ContainsFunc(id, notPlain) {
		return fmt.Sprintf("%s%08x%08x", prefix, uint32(s.cfg.Seed), a.request.ID)
	}
	return prefix + id
}

func notPlain(r rune) bool {
	plain := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r)
	return !plain
}
