package proxy

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/lull-project/lull/proxy/arrival"
)

// answerGrace is how long a write that failed waits for the answer that came before
// it. The connection is broken, so its reader has it or its end at once, but for a
// machine too busy to run the reader.
const answerGrace = 2 * time.Second

// hearOut makes a transport's connections hear their server out. A server may answer
// a request that it does not read to its end (413, 401), and close. The transport
// takes its failed write for the end of the request, though the answer lies there
// unread, and the client would get 502 for it.
func hearOut(t *http.Transport) {
	dial, dialTLS := t.DialContext, t.DialTLSContext
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return hearing(dial(ctx, network, addr))
	}
	t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return hearing(dialTLS(ctx, network, addr))
	}
}

func hearing(c net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return &hearingConn{Conn: c, heard: make(chan struct{}), clock: arrival.Of(c)}, nil
}

// hearingConn holds the news of a failed write back until its reader has read all
// that came.
type hearingConn struct {
	net.Conn
	end   sync.Once
	heard chan struct{} // closed at the reader's end
	clock *arrival.Clock
	head  answerHead
}

// Arrivals is when what was read had come.
func (c *hearingConn) Arrivals() *arrival.Clock { return c.clock }

func (c *hearingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.head.read(p[:n])
	if err != nil {
		c.end.Do(func() { close(c.heard) })
	}
	return n, err
}

func (c *hearingConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		grace := time.NewTimer(answerGrace)
		defer grace.Stop()
		select {
		case <-c.heard:
		case <-grace.C:
		}
	}
	return n, err
}

// CloseWrite passes on the end of one direction, as upgraded connections have it.
func (c *hearingConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
