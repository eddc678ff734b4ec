package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestInterimAnswersHopByHopFieldsStayOnTheirConnection: RFC 9110, 7.6.1, knows no
// exception for 1xx.
func TestInterimAnswersHopByHopFieldsStayOnTheirConnection(t *testing.T) {
	url := rawServer(t, func(_ int, c net.Conn) {
		if _, _, err := readRequest(bufio.NewReader(c)); err != nil {
			return
		}
		io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nConnection: keep-alive, X-Hop\r\nKeep-Alive: timeout=5\r\nX-Hop: 1\r\n\r\n"+
			"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	})
	bothPaths(t, func(t *testing.T, path string) {
		r := newRigTo(t, url)
		c, err := net.Dial("tcp", r.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
		_ = c.SetReadDeadline(time.Now().Add(wait))
		br := bufio.NewReader(c)
		res, err := http.ReadResponse(br, nil)
		if err != nil || res.StatusCode != 103 || res.Header.Get("Link") != "</a>" {
			t.Fatalf("got %+v, %v; want 103 with its link", res, err)
		}
		for _, name := range []string{"Connection", "Keep-Alive", "X-Hop"} {
			if v, ok := res.Header[name]; ok {
				t.Errorf("%s: got %q, want none", name, v)
			}
		}
		if res, err = http.ReadResponse(br, nil); err != nil || res.StatusCode != 200 || text(t, res) != "ok" {
			t.Errorf("got %+v, %v; want 200 after it", res, err)
		}
	})
}
