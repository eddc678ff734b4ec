package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ask10 sends a request as an HTTP/1.0 client does and reads to the end.
func ask10(t *testing.T, r *rig, path string) (answer string, err error) {
	t.Helper()
	c, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "POST %s HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{\"stream\":true}", path)
	text, err := io.ReadAll(c)
	return string(text), err
}

// cutUpstream answers with a chunked stream that ends in the middle.
func cutUpstream(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"a\"}]}\n\n")
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

func TestCutStreamIsResetForAClientThatKnowsNoChunks(t *testing.T) {
	r := newRig(t, cutUpstream)
	for _, path := range []string{"/v1/completions", "/pass"} {
		text, err := ask10(t, r, path)
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: got %q and %v, want a reset: to this client an end is a whole answer", path, text, err)
		}
	}
}

func TestWholeStreamEndsWellForAClientThatKnowsNoChunks(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: [DONE]\n\n")
	})
	for _, path := range []string{"/v1/completions", "/pass"} {
		text, err := ask10(t, r, path)
		if err != nil || !strings.HasSuffix(text, "data: [DONE]\n\n") || !strings.HasPrefix(text, "HTTP/1.0 200") && !strings.HasPrefix(text, "HTTP/1.1 200") {
			t.Errorf("%s: got %q, %v; want one whole answer without an interim one", path, text, err)
		}
	}
}

// moreThanFits sends more than any buffer holds.
func moreThanFits(w http.ResponseWriter, r *http.Request) {
	piece := strings.Repeat("x", 1<<20)
	for range 200 {
		if _, err := io.WriteString(w, piece); err != nil {
			return
		}
	}
}

func TestPassedAnswerThatNobodyTakesIsEnded(t *testing.T) {
	left := make(chan struct{})
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		moreThanFits(w, r)
		close(left)
	}, withConfig(func(c *Config) { c.IdleLimit = 100 * time.Millisecond }))
	c, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "GET /pass HTTP/1.1\r\nHost: x\r\n\r\n")
	within(t, "the upstream is let go of", left)
	r.idle()
}

func TestUpgradeFieldAloneDoesNotLiftTheUploadLimit(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
		withConfig(func(c *Config) { c.IdleLimit = 100 * time.Millisecond }))
	c, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "POST /pass HTTP/1.1\r\nHost: x\r\nUpgrade: x\r\nContent-Length: 100\r\n\r\nhalf")
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || res.StatusCode != http.StatusRequestTimeout {
		t.Errorf("got %+v, %v; want 408: nothing moves", res, err)
	}
	r.idle()
}
