package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestFieldsThatConnectionNamesStayBehindWhateverElseItSays: RFC 9110, 7.6.1, wants
// them out of header and trailers, both ways. net/http reads "close" itself.
func TestFieldsThatConnectionNamesStayBehindWhateverElseItSays(t *testing.T) {
	bothPaths(t, func(t *testing.T, path string) {
		for _, connection := range []string{"X-Hop", "close, X-Hop", "X-Hop, close", "keep-alive,x-hop", "close\r\nConnection: X-Hop", "X-Hop\r\nConnection: close", ", ,X-Hop;q=1, X-Hop"} {
			sees := make(chan *http.Request, 1)
			r := newRigTo(t, rawServer(t, func(_ int, c net.Conn) {
				req, _, err := readRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				sees <- req
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nConnection: %s\r\nX-Hop: 1\r\nX-Keep: 1\r\nTrailer: X-Hop, X-End\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Hop: 2\r\nX-End: 2\r\n\r\n", connection)
			}))
			c, err := net.Dial("tcp", r.server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nConnection: %s\r\nX-Hop: 1\r\nX-Keep: 1\r\nTrailer: X-Hop, X-End\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Hop: 2\r\nX-End: 2\r\n\r\n", path, connection)
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatalf("%q: %v", connection, err)
			}
			if b, err := io.ReadAll(res.Body); err != nil || string(b) != "{}" {
				t.Errorf("%q: got %q, %v", connection, b, err)
			}
			c.Close()
			up := <-sees
			for way, got := range map[string][2]http.Header{"request": {up.Header, up.Trailer}, "answer": {res.Header, res.Trailer}} {
				if got[0].Get("X-Keep") != "1" || got[1].Get("X-End") != "2" {
					t.Errorf("%s, %q: got %v and trailers %v, want X-Keep and X-End in them", way, connection, got[0], got[1])
				}
				for _, h := range got {
					if _, ok := h["X-Hop"]; ok || strings.Contains(strings.ToLower(strings.Join(h["Connection"], ",")), "hop") {
						t.Errorf("%s, %q: got %v, want no X-Hop", way, connection, h)
					}
				}
			}
		}
	})
}
