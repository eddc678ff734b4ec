package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

func TestUpstreamThatSwitchesProtocolsUnaskedIsAnUpstreamError(t *testing.T) {
	r := newRigTo(t, rawServer(t, func(_ int, c net.Conn) {
		_, _ = http.ReadRequest(bufio.NewReader(c))
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	}))
	res, err := r.client.Post(r.server.URL+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	if res.StatusCode != 502 || !strings.Contains(string(text), "it switched protocols without being asked to") {
		t.Errorf("got %d %s, want 502 and the reason", res.StatusCode, text)
	}
}

func TestUpstreamsStatusThatIsNoneIsAnUpstreamError(t *testing.T) {
	bothPaths(t, func(t *testing.T, path string) {
		for _, status := range []string{"000", "099", "199"} {
			url := rawServer(t, func(_ int, c net.Conn) {
				if _, _, err := readRequest(bufio.NewReader(c)); err == nil {
					io.WriteString(c, "HTTP/1.1 "+status+" x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
				}
			})
			res := newRigTo(t, url).post(path, `{"prompt":"x"}`)
			if got := text(t, res); res.StatusCode != 502 || (status < "100" && !strings.Contains(got, "it answered with status "+status+", want 200 to 999")) {
				t.Errorf("status %s: got %d %s, want 502 and the reason", status, res.StatusCode, got)
			}
		}
	})
}
