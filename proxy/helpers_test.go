package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lull-project/lull/proxy/arrival"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wait is how long a test waits for what must happen.
const wait = 30 * time.Second

// watcher is an Observer that keeps what it is told.
type watcher struct {
	records chan Record
	mu      sync.Mutex
	content []time.Time
	tokens  []int
	events  []time.Time
}

func newWatcher() *watcher { return &watcher{records: make(chan Record, 4096)} }

func (o *watcher) Content(_ string, at time.Time, tokens int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.content, o.tokens = append(o.content, at), append(o.tokens, tokens)
}

func (o *watcher) Event(_ string, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, at)
}

func (o *watcher) Done(r Record) { o.records <- r }

// record waits for the next account.
func (o *watcher) record(t *testing.T) Record {
	t.Helper()
	select {
	case r := <-o.records:
		return r
	case <-time.After(wait):
		t.Fatal("no record came; want one for every ending")
		return Record{}
	}
}

// noMore fails if there was an account too many.
func (o *watcher) noMore(t *testing.T) {
	t.Helper()
	select {
	case r := <-o.records:
		t.Fatalf("a second record came: %+v", r)
	default:
	}
}

// gateFunc is a Gate from a function.
type gateFunc func(context.Context, Request) Verdict

func (f gateFunc) Admit(ctx context.Context, r Request) Verdict { return f(ctx, r) }

// holds is a Gate that lets requests go after a while.
func holds(d time.Duration) gateFunc {
	return func(ctx context.Context, _ Request) Verdict {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
		return Verdict{Forward: true, Outcome: OutcomeHeldForwarded}
	}
}

// rig is a proxy before a fake upstream, both on real listeners.
type rig struct {
	t        *testing.T
	upstream *httptest.Server
	proxy    *Proxy
	server   *httptest.Server
	seen     *watcher
	client   *http.Client
}

type rigOption func(*Config, *Gate)

func withConfig(f func(*Config)) rigOption { return func(c *Config, _ *Gate) { f(c) } }
func withGate(g Gate) rigOption            { return func(_ *Config, to *Gate) { *to = g } }

func newRig(t *testing.T, h http.HandlerFunc, opts ...rigOption) *rig {
	t.Helper()
	up := httptest.NewUnstartedServer(h)
	up.Config.ErrorLog = log.New(io.Discard, "", 0)
	up.Start()
	t.Cleanup(up.Close)
	r := newRigTo(t, up.URL, opts...)
	r.upstream = up
	return r
}

// newRigTo is a rig before an upstream that the test runs itself.
func newRigTo(t *testing.T, url string, opts ...rigOption) *rig {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Upstreams = []Upstream{{Name: "fake", URL: url}}
	cfg.IDPrefix = "test"
	var gate Gate
	for _, o := range opts {
		o(&cfg, &gate)
	}
	r := &rig{t: t, seen: newWatcher()}
	r.proxy = New(cfg, gate, r.seen)
	r.server = httptest.NewUnstartedServer(nil)
	r.server.Config = Server(r.proxy)
	r.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	r.server.Listener = arrival.Listen(r.server.Listener)
	r.server.Start()
	tr := &http.Transport{DisableCompression: true}
	r.client = &http.Client{Transport: tr}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		r.server.Close()
		r.proxy.Close()
	})
	return r
}

// post sends a body to a path of the proxy.
func (r *rig) post(path, body string) *http.Response {
	r.t.Helper()
	res, err := r.client.Post(r.server.URL+path, "application/json", strings.NewReader(body))
	if err != nil {
		r.t.Fatalf("POST %s: %v", path, err)
	}
	r.t.Cleanup(func() { res.Body.Close() })
	return res
}

// text reads an answer to its end.
func text(t *testing.T, res *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("read answer: %v after %d bytes", err, len(b))
	}
	return string(b)
}

// idle waits until the proxy serves nothing.
func (r *rig) idle() {
	r.t.Helper()
	deadline := time.Now().Add(wait)
	for r.proxy.InFlight() != 0 || r.proxy.Stats().Passing != 0 {
		if time.Now().After(deadline) {
			r.t.Fatalf("in flight: got %+v, want 0", r.proxy.Stats())
		}
		time.Sleep(time.Millisecond) // polls a counter that another goroutine lowers
	}
}

const chatPath = "/v1/chat/completions"

// stream writes parts as an event stream, flushing after each.
func stream(parts ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for _, p := range parts {
			_, _ = io.WriteString(w, p)
			w.(http.Flusher).Flush()
		}
	}
}

func chunk(content string) string {
	return fmt.Sprintf(`data: {"choices":[{"index":0,"delta":{"content":%q},"finish_reason":null}]}`+"\n\n", content)
}

const (
	roleChunk  = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	usageChunk = `data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}}` + "\n\n"
	doneChunk  = "data: [DONE]\n\n"
)

// rawServer accepts connections and gives each to serve, with its number.
func rawServer(t *testing.T, serve func(n int, c net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	rawServerAt(t, l, serve)
	return "http://" + l.Addr().String()
}

// rawServerAt is the same on any listener, which it closes.
func rawServerAt(t *testing.T, l net.Listener, serve func(n int, c net.Conn)) {
	var conns sync.WaitGroup
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for n := 1; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Add(1)
			go func() {
				defer conns.Done()
				defer c.Close()
				serve(n, c)
			}()
		}
	}()
	t.Cleanup(func() { l.Close(); <-ended; conns.Wait() })
}

// readRequest reads one request with its body off a raw connection.
func readRequest(br *bufio.Reader) (*http.Request, string, error) {
	req, err := http.ReadRequest(br)
	if err != nil {
		return nil, "", err
	}
	b, err := io.ReadAll(req.Body)
	return req, string(b), err
}

// rawPost opens a connection to the proxy and sends a chat request on it.
func (r *rig) rawPost(body string) net.Conn {
	r.t.Helper()
	c, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(body), body)
	return c
}

// counter is a number that several goroutines raise.
type counter struct {
	mu sync.Mutex
	n  int64
}

func (c *counter) add(n int) { c.mu.Lock(); defer c.mu.Unlock(); c.n += int64(n) }
func (c *counter) get() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}
