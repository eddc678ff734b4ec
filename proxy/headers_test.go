package proxy

import (
	"net/http"
	"strings"
	"testing"
)

// bothPaths runs a test on an interpreted and on a passed path.
func bothPaths(t *testing.T, f func(t *testing.T, path string)) {
	for _, path := range []string{chatPath, "/other"} {
		t.Run(path, func(t *testing.T) { f(t, path) })
	}
}

// exchangeHeaders sends a request with headers and returns what the upstream saw and
// what the client got.
func exchangeHeaders(t *testing.T, path string, send, answer http.Header) (upstream, client http.Header) {
	t.Helper()
	seen := make(chan http.Header, 1)
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Clone()
		for k, v := range answer {
			w.Header()[k] = v
		}
	})
	req, _ := http.NewRequest("POST", r.server.URL+path, strings.NewReader("{}"))
	for k, v := range send {
		req.Header[k] = v
	}
	res, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	text(t, res)
	res.Body.Close()
	return <-seen, res.Header
}

func TestHopByHopFieldsStayOnTheirConnection(t *testing.T) {
	bothPaths(t, func(t *testing.T, path string) {
		up, down := exchangeHeaders(t, path,
			http.Header{
				"Connection": {"foo, X-Bar"}, "Foo": {"1"}, "X-Bar": {"1"}, "Proxy-Authorization": {"secret"},
				"Proxy-Connection": {"keep-alive"}, "Keep-Alive": {"timeout=5"}, "Te": {"trailers, gzip"}, "X-Keep": {"1", "2"},
				"Authorization": {"Bearer k"}, "X-Forwarded-For": {"1.2.3.4"}, "Forwarded": {"for=x"}, "X-Slo-Ttft-Ms": {"50"},
			},
			http.Header{"Connection": {"baz"}, "Baz": {"1"}, "Keep-Alive": {"timeout=5"}, "Proxy-Authenticate": {"x"}, "X-Keep": {"3", "4"}})
		for _, k := range []string{"Connection", "Foo", "X-Bar", "Proxy-Authorization", "Proxy-Connection", "Keep-Alive", "X-Forwarded-For", "Forwarded"} {
			if v, ok := up[k]; ok {
				t.Errorf("upstream: got %s: %q, want none", k, v)
			}
		}
		for k, want := range map[string]string{"X-Keep": "1|2", "Te": "trailers", "Authorization": "Bearer k", "X-Slo-Ttft-Ms": "50"} {
			if got := strings.Join(up[k], "|"); got != want {
				t.Errorf("upstream: got %s: %q, want %q", k, got, want)
			}
		}
		for _, k := range []string{"Baz", "Keep-Alive", "Proxy-Authenticate"} {
			if v, ok := down[k]; ok {
				t.Errorf("client: got %s: %q, want none", k, v)
			}
		}
		if got := strings.Join(down["X-Keep"], "|"); got != "3|4" {
			t.Errorf("client: got X-Keep %q, want 3|4", got)
		}
	})
}

func TestNothingIsAddedForTheClient(t *testing.T) {
	bothPaths(t, func(t *testing.T, path string) {
		up, _ := exchangeHeaders(t, path, http.Header{"User-Agent": nil}, nil)
		for _, k := range []string{"Accept-Encoding", "User-Agent", "X-Forwarded-For"} {
			if v, ok := up[k]; ok {
				t.Errorf("upstream: got %s: %q, want none", k, v)
			}
		}
	})
}

func TestEventStreamsAskOthersNotToBuffer(t *testing.T) {
	bothPaths(t, func(t *testing.T, path string) {
		for _, ct := range []string{"text/event-stream", "text/event-stream; charset=utf-8", "Text/Event-Stream;x=y"} {
			_, down := exchangeHeaders(t, path, nil, http.Header{"Content-Type": {ct}})
			if down.Get("X-Accel-Buffering") != "no" || down.Get("Cache-Control") != "no-cache" || down.Get("Content-Type") != ct {
				t.Errorf("%s: got %v, want no buffering and no cache", ct, down)
			}
		}
		_, down := exchangeHeaders(t, path, nil, http.Header{"Content-Type": {"text/event-stream"}, "X-Accel-Buffering": {"yes"}, "Cache-Control": {"private"}})
		if down.Get("X-Accel-Buffering") != "yes" || down.Get("Cache-Control") != "private" {
			t.Errorf("got %v, want the upstream's own words", down)
		}
		_, down = exchangeHeaders(t, path, nil, http.Header{"Content-Type": {"application/json"}})
		if _, ok := down["X-Accel-Buffering"]; ok {
			t.Errorf("no stream: got %v, want nothing added", down)
		}
	})
}

func TestRequestIDIsKeptOrMade(t *testing.T) {
	bothPaths(t, func(t *testing.T, path string) {
		up, down := exchangeHeaders(t, path, http.Header{"X-Request-Id": {"mine"}}, nil)
		if up.Get("X-Request-Id") != "mine" || down.Get("X-Request-Id") != "mine" {
			t.Errorf("got %q and %q, want the caller's", up.Get("X-Request-Id"), down.Get("X-Request-Id"))
		}
		up, down = exchangeHeaders(t, path, nil, nil)
		if id := up.Get("X-Request-Id"); !strings.HasPrefix(id, "test-") || down.Get("X-Request-Id") != id {
			t.Errorf("got %q and %q, want one that was made", id, down.Get("X-Request-Id"))
		}
		up, down = exchangeHeaders(t, path, http.Header{"X-Request-Id": {strings.Repeat("x", 300)}}, http.Header{"X-Request-Id": {"theirs"}})
		if id := up.Get("X-Request-Id"); !strings.HasPrefix(id, "test-") || down.Get("X-Request-Id") != "theirs" {
			t.Errorf("got %q and %q, want a made one and the upstream's", id, down.Get("X-Request-Id"))
		}
	})
}

func TestRecordsWithOneCallersIDStayApart(t *testing.T) {
	r := newRig(t, func(http.ResponseWriter, *http.Request) {})
	ids := map[string]bool{}
	for range 3 {
		req, _ := http.NewRequest("POST", r.server.URL+chatPath, strings.NewReader("{}"))
		req.Header.Set("X-Request-Id", "same")
		res, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text(t, res)
		res.Body.Close()
		rec := r.seen.record(t)
		ids[rec.ID] = rec.RequestID == "same"
	}
	if len(ids) != 3 {
		t.Errorf("ids: got %v, want three", ids)
	}
}

func TestTraceContextReachesTheUpstreamInLowerCase(t *testing.T) {
	h := http.Header{"Traceparent": {"00-a-b-01"}, "Tracestate": {"x=y"}}
	shapeRequest(h, "id")
	sent := map[string][]string(h)
	if len(sent["traceparent"]) != 1 || len(sent["tracestate"]) != 1 || sent["Traceparent"] != nil {
		t.Errorf("got %v, want lower-case names", h)
	}
	bothPaths(t, func(t *testing.T, path string) {
		up, _ := exchangeHeaders(t, path, http.Header{"Traceparent": {"00-a-b-01"}}, nil)
		if got := up.Get("Traceparent"); got != "00-a-b-01" {
			t.Errorf("traceparent: got %q, want the caller's", got)
		}
	})
}
