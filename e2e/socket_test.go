package e2e

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestARealServerBehindASocketIsRelayedAndFound runs llama.cpp's server on a unix
// socket, as an operator does who gives it no port.
func TestARealServerBehindASocketIsRelayedAndFound(t *testing.T) {
	full = python(t, "LULL_TEST_PYTHON_FULL", "full")
	dir, err := os.MkdirTemp("", "lull") // a test's own folder may have too long a name for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "llama.sock")
	p, err := start("llamacpp-socket", nil, nil, full, "scripts/llama_server.py", path)
	if err != nil {
		t.Fatal(err)
	}
	defer p.stop()
	direct := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	defer direct.CloseIdleConnections()
	err = until(p, time.Minute, 100*time.Millisecond, func() bool {
		res, err := (&http.Client{Transport: direct}).Get("http://localhost/health")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	if err != nil {
		t.Fatalf("llama.cpp on a socket: %v\n%s", err, p.tail())
	}
	s := &server{name: "llamacpp", kind: "llamacpp", model: "smollm2", url: "unix://" + path, bytesPerToken: servers[1].bytesPerToken}
	s.once.Do(func() {}) // it is up
	l := serve(t, s)
	got := ask(t, l.url, s.model, "chat", "stream", 8, "Tell me of the sea.")
	if got.Text == "" {
		t.Errorf("got %+v, want an answer", got)
	}
	st := l.waitFor(t, "the engine with its process", time.Minute, func(st state) bool { return len(st.Engines) == 1 && st.Engines[0].PID != 0 })
	if e := st.Engines[0]; e.Kind != "llamacpp" || e.Problem != "" || e.PID != p.cmd.Process.Pid {
		t.Errorf("got %+v, want llama.cpp as process %d", e, p.cmd.Process.Pid)
	}
}
