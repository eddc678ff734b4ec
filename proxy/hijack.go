package proxy

import (
	"bufio"
	"net"
	"net/http"
)

// Hijack takes the connection over with what its client had sent already: the
// server's reader may hold bytes beyond the request, and ReverseProxy reads the
// connection alone.
func (w *passWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, both, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if n := both.Reader.Buffered(); n > 0 {
		early, _ := both.Reader.Peek(n) // they are there
		conn = &begun{Conn: conn, early: append([]byte(nil), early...)}
	}
	return conn, both, nil
}

// begun is a connection whose first bytes were read before.
type begun struct {
	net.Conn
	early []byte
}

// Read gives the early bytes first.
func (c *begun) Read(b []byte) (int, error) {
	if len(c.early) > 0 {
		n := copy(b, c.early)
		c.early = c.early[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// CloseWrite half-closes where the connection can.
func (c *begun) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return c.Conn.Close()
}
