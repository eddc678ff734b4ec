package e2e

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestTheEngineStopsForAClientThatLeft asks for an answer of many seconds, leaves
// when the engine is at it, and watches the engine's own count of live requests.
func TestTheEngineStopsForAClientThatLeft(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		direct := s.up(t)
		l := serve(t, s)
		for _, stream := range []string{"true", "false"} {
			t.Run("stream="+stream, func(t *testing.T) {
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				before := metric(get(direct+"/metrics"), s.decoded)
				body := `{"model":"` + s.model + `","prompt":"hello there","max_tokens":1900,"ignore_eos":true,"temperature":0,"stream":` + stream + `}`
				done := make(chan error, 1)
				go func() { done <- send(ctx, l.url+"/v1/completions", body) }() // ends when leave is called
				if err := until(s.p, time.Minute, s.quiet, func() bool { return s.running(direct) == 1 }); err != nil {
					t.Fatalf("the engine never ran the request: %v", err)
				}
				leave()
				left := time.Now()
				if err := <-done; err == nil {
					t.Fatal("the answer was whole before the client left")
				}
				if err := until(s.p, s.gone, s.quiet, func() bool { return s.running(direct) == 0 }); err != nil {
					t.Errorf("the engine still decodes for a client that left: %v", err)
				}
				if n := metric(get(direct+"/metrics"), s.decoded) - before; n >= 1900 {
					t.Errorf("the engine decoded %d tokens, want it aborted before the 1900 that were asked for", n)
				}
				t.Logf("%s: stopped %v after its client left", s.name, time.Since(left).Round(10*time.Millisecond))
				l.waitFor(t, "the sidecar's own count falls", 30*time.Second, func(st state) bool { return st.Live == 0 })
			})
		}
	})
}

// send reads an answer to its end.
func send(ctx context.Context, url, body string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}
