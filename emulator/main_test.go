package emulator

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lull-project/lull/emulator/model"
	"github.com/lull-project/lull/size"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quick is a server whose steps take a millisecond and whose memory is small.
func quick() Config {
	cfg := DefaultConfig()
	cfg.Listen = "127.0.0.1:0"
	cfg.Coefficients = &model.Coefficients{Prefill: model.Curve{A: 1}, Decode: model.Curve{A: 1}}
	cfg.MaxModelLen, cfg.Pool, cfg.Resident = 512, 64*size.MiB, 4*size.MiB
	return cfg
}

// frozen is a server whose every step takes an hour: what it holds stays.
func frozen() Config {
	cfg := quick()
	cfg.Coefficients = &model.Coefficients{Prefill: model.Curve{A: 3.6e6}, Decode: model.Curve{A: 3.6e6}}
	return cfg
}

// startServer runs a server without the warm-up, which only the baseline needs.
func startServer(t *testing.T, cfg Config) *Server {
	t.Helper()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		t.Fatal(err)
	}
	s, err := start(context.Background(), cfg, listener, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// post sends a JSON body and returns the open response.
func post(t *testing.T, ctx context.Context, s *Server, path, body string, header ...string) *http.Response {
	t.Helper()
	resp, err := try(ctx, s, http.MethodPost, path, body, header...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func try(ctx context.Context, s *Server, method, path, body string, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.Addr()+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return http.DefaultClient.Do(req)
}

// call sends a request and returns status and body.
func call(t *testing.T, s *Server, method, path, body string, header ...string) (int, string) {
	t.Helper()
	resp, err := try(t.Context(), s, method, path, body, header...)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// prompt is a text of n words.
func prompt(n int) string { return strings.TrimSpace(strings.Repeat("word ", n)) }

// chat is a body with one message of so many words.
func chat(words int, more string) string {
	return fmt.Sprintf(`{"model":"lull-emulated","messages":[{"role":"user","content":%q}]%s}`, prompt(words), more)
}

// events reads SSE data lines until the stream ends.
func events(r io.Reader) (data []string, err error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			data = append(data, text)
		}
	}
	return data, lines.Err()
}

// chunk is what the tests look at in an event.
type chunk struct {
	ID, Object, Model string
	Choices           []struct {
		Delta        map[string]string
		Text         string
		Message      struct{ Role, Content string }
		FinishReason *string `json:"finish_reason"`
	}
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
	}
	Error *apiError
}

func parse(t *testing.T, text string) chunk {
	t.Helper()
	var c chunk
	if err := json.NewDecoder(bytes.NewReader([]byte(text))).Decode(&c); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return c
}

// eventually asks until the state is as wanted; a minute is far beyond any step.
func eventually(t *testing.T, s *Server, what string, ok func(State) bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-tick.C {
		if ok(s.State()) {
			return
		}
	}
	t.Fatalf("%s: not within a minute; state %+v", what, s.State())
}
