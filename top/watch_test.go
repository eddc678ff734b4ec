package top

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// answering serves the state and no handovers, or what is not a state.
func answering(t *testing.T, state string) (url string, client *http.Client) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/v1/state":
			_, _ = w.Write([]byte(state))
		case "/api/v1/handovers":
			_, _ = w.Write([]byte("[]"))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(srv.Client().CloseIdleConnections)
	return srv.URL, srv.Client()
}

func TestSidecarThatDoesNotDecideYetIsShown(t *testing.T) {
	url, client := answering(t, `{"session":3,"problems":["engines: main: not read"]}`)
	var out bytes.Buffer
	if err := Watch(t.Context(), &out, Config{URL: url + "/", Every: time.Second, Once: true}, client, time.Now); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"session 3  nothing to lend  0 requests now\n", "No core to ask yet", "! engines: main: not read\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("not shown: %q in %s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("plain text has control characters: %q", out.String())
	}
}

func TestWrongAddressIsNamed(t *testing.T) {
	url, client := answering(t, "<html>")
	for want, base := range map[string]string{
		"got what is no state":   url,
		"got 404 Not Found":      url + "/elsewhere",
		"connection refused":     "http://127.0.0.1:1",
		"first path segment in ": "127.0.0.1:9797",
	} {
		err := Watch(t.Context(), &bytes.Buffer{}, Config{URL: base, Every: time.Second, Once: true}, client, time.Now)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "want the admin listener of `lull serve`") {
			t.Errorf("%s: got %v, want %s", base, err, want)
		}
	}
	if err := Watch(t.Context(), &bytes.Buffer{}, Config{Every: time.Millisecond}, client, time.Now); err == nil || err.Error() != "top: every: got 1ms, want at least 100ms" {
		t.Errorf("got %v", err)
	}
}

// terminal collects what is drawn and says when a text has come.
type terminal struct {
	mu   sync.Mutex
	b    bytes.Buffer
	want string
	came chan struct{}
	once sync.Once
}

func (w *terminal) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b.Write(p)
	if strings.Count(w.b.String(), w.want) >= 2 {
		w.once.Do(func() { close(w.came) })
	}
	return len(p), nil
}

// TestScreenIsDrawnAgainAndTheTerminalGivenBack: over the last one, and a sidecar that
// is gone is said on it.
func TestScreenIsDrawnAgainAndTheTerminalGivenBack(t *testing.T) {
	url, client := answering(t, `{"session":3}`)
	for want, base := range map[string]string{"session 3": url, "connection refused": "http://127.0.0.1:1"} {
		w := &terminal{want: want, came: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- Watch(ctx, w, Config{URL: base, Every: 100 * time.Millisecond}, client, time.Now) }() // ends with ctx
		<-w.came
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", base, err)
		}
		if got := w.b.String(); !strings.HasPrefix(got, enter+corner) || !strings.HasSuffix(got, leave) {
			t.Errorf("%s: got %q", base, got)
		}
	}
}
