package proxy

import (
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/endpoint"
	"github.com/lull-project/lull/endpoint/endpointtest"
)

func TestStreamsComeThroughASocketByteForByte(t *testing.T) {
	parts := []string{roleChunk, chunk("a"), chunk("b"), doneChunk}
	r := newRigTo(t, "unix://"+endpointtest.Socket(t, stream(parts...)))
	if got := text(t, r.post(chatPath, `{"stream":true}`)); got != strings.Join(parts, "") {
		t.Errorf("got %q", got)
	}
	if rec := r.seen.record(t); rec.Outcome != OutcomeForwarded || rec.Events == 0 {
		t.Errorf("record %+v, want a stream that was counted", rec)
	}
	if got := text(t, r.post("/tokenize", "{}")); got != strings.Join(parts, "") { // passed
		t.Errorf("passed: got %q", got)
	}
	if up, down := r.proxy.Check(t.Context()); len(up)+len(down) != 0 || r.proxy.Serving() != "fake" {
		t.Errorf("check: %v %v, serving %q; want it up", up, down, r.proxy.Serving())
	}
}

func TestSocketThatIsNotThereIsAnUpstreamThatIsDown(t *testing.T) {
	gone := "unix://" + filepath.Join(t.TempDir(), "s")
	r := newRigTo(t, gone)
	res := r.post(chatPath, "{}")
	if got := text(t, res); res.StatusCode != 502 || !strings.Contains(got, CodeUnreachable) {
		t.Errorf("got %d %s, want 502 and %s", res.StatusCode, got, CodeUnreachable)
	}
	if _, down := r.proxy.Check(t.Context()); len(down) != 1 {
		t.Errorf("down: got %v, want it at the first check", down)
	}
	second := saying(t, "second")
	r = newRigTo(t, "", failover(gone, second.URL))
	if got := text(t, r.post(chatPath, "{}")); got != "second" {
		t.Errorf("got %q, want the second's answer", got)
	}
}

// saysWhoCalled answers with who called.
func saysWhoCalled(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
}

func TestUpstreamIsShownTheCertificateThatItWants(t *testing.T) {
	ca := endpointtest.NewCA(t)
	client := ca.Issue("lull")
	s := endpointtest.Server(t, http.HandlerFunc(saysWhoCalled), ca.Issue("127.0.0.1"), ca)
	ours := endpoint.TLS{CA: ca.File, Cert: client.Cert, Key: client.Key}
	r := newRigTo(t, s.URL, withConfig(func(c *Config) { c.Upstreams[0].TLS = ours }))
	for _, path := range []string{chatPath, "/tokenize"} {
		if got := text(t, r.post(path, "{}")); got != "lull" {
			t.Errorf("%s: got %q, want the server to know who calls", path, got)
		}
	}
	if _, _ = r.proxy.Check(t.Context()); r.proxy.Serving() != "fake" {
		t.Errorf("health: got %+v, want it up", r.proxy.Health())
	}
}

func TestServerThatIsNotTrustedGetsNoRequest(t *testing.T) {
	ca := endpointtest.NewCA(t)
	s := endpointtest.Server(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request came") }), ca.Issue("127.0.0.1"), nil)
	r := newRigTo(t, s.URL)
	res := r.post(chatPath, "{}")
	if got := text(t, res); res.StatusCode != 502 || !strings.Contains(got, "unknown authority") {
		t.Errorf("got %d %s, want 502 and why", res.StatusCode, got)
	}
	second := saying(t, "second")
	r = newRigTo(t, "", failover(s.URL, second.URL))
	if got := text(t, r.post(chatPath, "{}")); got != "second" {
		t.Errorf("got %q, want the second's answer: nothing has gone to the first", got)
	}
}

// TestServerThatIsLateToShakeHandsIsNotDown: it computes, and its event loop shakes
// hands when it has time.
func TestServerThatIsLateToShakeHandsIsNotDown(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	second := saying(t, "second")
	r := newRigTo(t, "", failover("https://"+l.Addr().String(), second.URL), withConfig(func(c *Config) { c.ConnectTimeout = 500 * time.Millisecond }))
	if got := text(t, r.post(chatPath, "{}")); got != "second" {
		t.Errorf("got %q, want the second's answer: nothing has gone to the first", got)
	}
	if r.proxy.upstreams[0].health.down.Load() {
		t.Error("it is down; want what a check says of one that is slow")
	}
	r = newRigTo(t, "https://"+l.Addr().String(), withConfig(func(c *Config) { c.ConnectTimeout = 500 * time.Millisecond }))
	res := r.post(chatPath, "{}")
	if got := text(t, res); res.StatusCode != 502 || !strings.Contains(got, "deadline exceeded") {
		t.Errorf("alone: got %d %s, want 502 and why", res.StatusCode, got)
	}
}

func TestAnotherConfigKeepsTheConnectionsThatItStillNeeds(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Upstreams = []Upstream{{Name: "a", URL: "http://x"}, {Name: "b", URL: "https://y"}, {Name: "c", URL: "unix:///c"}, {Name: "d", URL: "https://y", TLS: endpoint.TLS{CA: "own"}}}
	p := New(cfg, nil, nil)
	a, b, c, d := p.upstreams[0].transport, p.upstreams[1].transport, p.upstreams[2].transport, p.upstreams[3].transport
	if a != b || a == c || a == d || c == d {
		t.Error("want one transport for all that is dialled alike, and no other shared")
	}
	cfg.Upstreams = cfg.Upstreams[2:]
	next, err := p.Reconfigured(cfg)
	if err != nil || next.upstreams[0].transport != c || next.upstreams[1].transport != d || len(next.links.open) != 2 {
		t.Errorf("got %v, want those that are still needed, and no more", err)
	}
	if again, err := next.Reconfigured(DefaultConfig()); err != nil || again.upstreams[0].transport == a {
		t.Errorf("got %v, want what nobody needed forgotten", err)
	}
}
