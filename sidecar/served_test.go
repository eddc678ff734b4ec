package sidecar

import (
	"encoding/json"
	"io"
	"net/http"
	"testing"
)

// TestRequestsAreCountedWithoutAnObjective: a relay that promises nothing still shows
// what it has served, and errors have no TTFT.
func TestRequestsAreCountedWithoutAnObjective(t *testing.T) {
	l := newLone(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Header.Get("X-Fail") != "" {
			http.Error(w, "full", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n")
	}), nil, nil)
	for _, header := range []http.Header{nil, nil, {"X-Fail": {"yes"}}} {
		if _, _, _, err := l.call(http.MethodPost, l.base+chatPath, `{"model":"m","stream":true,"messages":[]}`, header); err != nil {
			t.Fatal(err)
		}
	}
	var st State
	l.until("all three are counted", func() bool {
		_, _, text, err := l.call(http.MethodGet, l.admin+"/api/v1/state", "", nil)
		return err == nil && json.Unmarshal([]byte(text), &st) == nil && st.Served.Requests == 3
	})
	if s := st.Served; s.TTFTSamples != 2 || s.TTFTP50 <= 0 || s.TTFTP99 < s.TTFTP50 {
		t.Errorf("got %+v, want the TTFT of two", s)
	}
}
