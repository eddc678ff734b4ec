package calibrate

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lull-project/lull/emulator"
	"github.com/lull-project/lull/emulator/model"
	"github.com/lull-project/lull/size"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// emulated is an emulator on a real listener whose steps take a millisecond and
// whose prefill takes 10 microseconds a token more.
func emulated(t *testing.T) string {
	t.Helper()
	cfg := emulator.DefaultConfig()
	cfg.Listen = "127.0.0.1:0"
	cfg.Coefficients = &model.Coefficients{Prefill: model.Curve{A: 2, B: 0.01}, Decode: model.Curve{A: 1}}
	cfg.MaxModelLen, cfg.Pool, cfg.Resident = 1024, 128*size.MiB, 2*size.MiB
	s, err := emulator.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return "http://" + s.Addr()
}

// quick is a calibration of a few short requests that takes any spread.
func quick(upstream string) Config {
	cfg := DefaultConfig()
	cfg.Upstream, cfg.Model = upstream, "lull-emulated"
	cfg.Prompts, cfg.Answers, cfg.Runs, cfg.WarmUp = []int{16, 256}, []int{2, 8}, 3, 2
	cfg.MaxSpread = 10
	return cfg
}

// someFile is a config file with comments.
func someFile(t *testing.T) (path, text string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "lull.yaml")
	text = "# ours\nengines:\n  - {name: main, kind: auto, url: \"http://127.0.0.1:1\"}\nslo:\n  ttft: 9s   # by hand\n  success: 0.999\n"
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	return path, text
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// fake is a server that lists its models and answers chats as told.
func fake(t *testing.T, chat http.HandlerFunc) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`) })
	mux.HandleFunc("POST /v1/chat/completions", chat)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

// stream answers a chat with these events and [DONE].
func stream(w io.Writer, events ...string) {
	for _, e := range events {
		fmt.Fprintf(w, "data: %s\n\n", e)
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// occupy keeps one request of somebody else running on the emulator until the
// test ends.
func occupy(t *testing.T, upstream string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	body := `{"model":"lull-emulated","stream":true,"ignore_eos":true,"max_tokens":900,"messages":[{"role":"user","content":"x"}]}`
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() { cancel(); client.CloseIdleConnections() })
	begun := make(chan error, 1)
	go func() { // ends with the test
		for first := true; ctx.Err() == nil; first = false {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, upstream+"/v1/chat/completions", strings.NewReader(body))
			if err != nil {
				begun <- err
				return
			}
			resp, err := client.Do(req)
			if first {
				begun <- err
			}
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}()
	if err := <-begun; err != nil {
		t.Fatal(err)
	}
}

const ms = time.Millisecond
