package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// rawUpload sends the head of a request, and gives its connection.
func (r *rig) rawUpload(path string, length int) net.Conn {
	r.t.Helper()
	c, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", path, length)
	return c
}

func TestUploadThatStandsStillIsEndedByTheIdleLimit(t *testing.T) {
	r := newRig(t, echo, withConfig(func(c *Config) { c.IdleLimit = 50 * time.Millisecond }))
	for _, path := range []string{chatPath, "/other"} {
		c := r.rawUpload(path, 100)
		io.WriteString(c, `{"model":`)
		mustBe408(t, path, c)
		r.idle()
	}
	if rec := r.seen.record(t); rec.Outcome != OutcomeRequestUnreadable {
		t.Errorf("record: got %+v, want request_unreadable", rec)
	}
	r.seen.noMore(t)
}

// mustBe408 wants the answer to an idle upload, and the end of its connection.
func mustBe408(t *testing.T, what string, c net.Conn) {
	t.Helper()
	br := bufio.NewReader(c)
	res, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	body := text(t, res)
	if res.StatusCode != http.StatusRequestTimeout || !strings.Contains(body, "lull: request body: no byte from the client within proxy.idle_timeout") || !strings.Contains(body, CodeBody) {
		t.Errorf("%s: got %d %s, want 408 and why", what, res.StatusCode, body)
	}
	if _, err := br.ReadByte(); err != io.EOF {
		t.Errorf("%s: got %v after the answer, want the connection's end", what, err)
	}
}

// TestRestOfALongUploadIsUnderTheIdleLimitToo stalls after the part that is read
// before it is forwarded.
func TestRestOfALongUploadIsUnderTheIdleLimitToo(t *testing.T) {
	gone := make(chan struct{}, 1)
	r := newRig(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		gone <- struct{}{}
	}, withConfig(func(c *Config) { c.IdleLimit, c.ScanBytes = time.Second/2, 1000 }))
	c := r.rawUpload(chatPath, 10_000)
	io.WriteString(c, strings.Repeat("x", 5000))
	mustBe408(t, "rest", c)
	within(t, "upstream told", gone)
	if rec := r.seen.record(t); rec.Outcome != OutcomeRequestUnreadable {
		t.Errorf("record: got %+v, want request_unreadable", rec)
	}
	r.idle()
}

func TestConnectionIsAsNewAfterAnUpload(t *testing.T) {
	t.Parallel()
	const limit = time.Second
	r := newRig(t, echo, withConfig(func(c *Config) { c.IdleLimit, c.ScanBytes = limit, 1000 }))
	for i, path := range []string{chatPath, "/other", chatPath} {
		if i > 0 {
			time.Sleep(limit * 5 / 4) // lets a deadline that was left behind pass
		}
		if got := text(t, r.post(path, strings.Repeat("x", 5000))); !strings.HasPrefix(got, "5000 ") {
			t.Errorf("request %d: got %s, want its 5000 bytes", i, got)
		}
	}
}

// TestUploadThatFlowsOutlivesTheIdleLimit sends a byte at a time for two
// limits: only standing still ends an upload.
func TestUploadThatFlowsOutlivesTheIdleLimit(t *testing.T) {
	t.Parallel()
	const limit = time.Second
	for _, path := range []string{chatPath, "/other"} {
		r := newRig(t, echo, withConfig(func(c *Config) { c.IdleLimit = limit }))
		const n = 36
		c := r.rawUpload(path, n)
		tick := time.NewTicker(2 * limit / n)
		for range n {
			<-tick.C
			if _, err := io.WriteString(c, "x"); err != nil {
				t.Fatal(err)
			}
		}
		tick.Stop()
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if body := text(t, res); res.StatusCode != 200 || !strings.HasPrefix(body, "36 ") {
			t.Errorf("%s: got %d %s, want all 36 bytes", path, res.StatusCode, body)
		}
	}
}

func TestBodiesBeyondTheirMemoryPassAsStreamsAndGiveItBack(t *testing.T) {
	asked := make(chan Request, 2)
	r := newRig(t, echo, withConfig(func(c *Config) { c.BodyMemory = 600 << 10 }),
		withGate(gateFunc(func(_ context.Context, r Request) Verdict {
			asked <- r
			return Verdict{Forward: true}
		})))
	body := `{"model":"m","prompt":"` + strings.Repeat("x", 2<<20) + `","max_tokens":5}`
	for range 2 { // the second shows that the first gave its memory back
		res := r.post("/v1/completions", body)
		if got := text(t, res); !strings.HasPrefix(got, fmt.Sprintf("%d ", len(body))) || !strings.HasSuffix(got, "<nil>") {
			t.Errorf("got %s, want all %d bytes", got, len(body))
		}
		if got := <-asked; got.Model != "m" || got.PromptBytes < 200<<10 || got.MaxTokens != 0 {
			t.Errorf("gate: got %+v, want what the beginning says", got)
		}
		if rec := r.seen.record(t); rec.Outcome != OutcomeForwarded {
			t.Errorf("record: got %+v", rec)
		}
	}
	r.idle()
	if used := r.proxy.bodies.used.Load(); used != 0 {
		t.Errorf("body memory: got %d in use, want none", used)
	}
}

func TestTrailersOfARequestPass(t *testing.T) {
	got := make(chan string, 1)
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- string(b) + " " + r.Trailer.Get("X-Digest")
	})
	for _, path := range []string{chatPath, "/other"} {
		c, err := net.Dial("tcp", r.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: x\r\nTE: trailers\r\nTrailer: X-Digest\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Digest: abc\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		text(t, res)
		c.Close()
		if g := <-got; g != "{} abc" {
			t.Errorf("%s: got %q, want the body and its trailer", path, g)
		}
	}
}
