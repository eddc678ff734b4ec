package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestNobodyGetsATunnelOfHTTPThroughTheProxy: behind one, requests would pass
// without a key, a Gate or an account.
func TestNobodyGetsATunnelOfHTTPThroughTheProxy(t *testing.T) {
	for _, fields := range []string{
		"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
		"Connection: upgrade\r\nUpgrade: H2C\r\n",
		"Connection: upgrade\r\nUpgrade: HTTP/2.0, h2c\r\n",
		"Connection: upgrade\r\nUpgrade: TLS/1.0\r\n",
		"Connection: upgrade\r\nUpgrade: foo\r\nUpgrade: h2c\r\n",
	} {
		seen := make(chan http.Header, 1)
		r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
			seen <- r.Header.Clone()
			if strings.Contains(strings.ToLower(r.Header.Get("Upgrade")), "h2c") {
				w.Header().Set("Upgrade", "h2c")
				w.Header().Set("Connection", "Upgrade")
				w.WriteHeader(http.StatusSwitchingProtocols)
			}
		})
		res := r.raw("GET /v1/models HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n")
		if res.StatusCode != 200 {
			t.Errorf("%q: got %d, want 200: a server may go on as it began", fields, res.StatusCode)
		}
		if h := <-seen; strings.Contains(fields, "foo") != (h.Get("Upgrade") == "foo") || len(h.Get("Upgrade")) > 3 || h.Get("Http2-Settings") != "" {
			t.Errorf("%q: the upstream was asked for %v", fields, h)
		}
	}
}

func TestOtherProtocolsBesideHTTPStayAskedFor(t *testing.T) {
	r, seen := seenBy(t)
	r.raw("GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c, websocket\r\n\r\n")
	if got := upstreams(t, seen).Get("Upgrade"); got != "websocket" {
		t.Errorf("got %q, want websocket", got)
	}
}

// TestPreflightThatWantsToUpgradeNeedsAKey: it asks for more than a preflight does.
func TestPreflightThatWantsToUpgradeNeedsAKey(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
		t.Error("the upstream got it")
		w.WriteHeader(http.StatusSwitchingProtocols)
	}, withKeys("known"))
	for _, protocol := range []string{"h2c", "websocket"} {
		if res := r.raw("OPTIONS / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: " + protocol + "\r\n\r\n"); res.StatusCode != 401 {
			t.Errorf("%s: got %d, want 401", protocol, res.StatusCode)
		}
	}
}

// raw sends bytes and reads an answer's header.
func (r *rig) raw(request string) *http.Response {
	r.t.Helper()
	c, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, request); err != nil {
		r.t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(wait))
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		r.t.Fatalf("%q: %v", request, err)
	}
	return res
}
