package proxybench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// conn is one client's connection to one arm. It reads on the goroutine that
// stamps, so that what it measures is the path and not its own scheduling.
type conn struct {
	arm     string
	net     net.Conn
	br      *bufio.Reader
	request []byte
	closed  func() bool // ends the watch on the context
}

func dial(ctx context.Context, arm, addr string) (*conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("bench proxy: dial %s: %w", arm, err)
	}
	body := `{"model":"bench","stream":true,"max_tokens":64,"messages":[{"role":"user","content":"` + strings.Repeat("word ", 200) + `"}]}`
	request := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	return &conn{
		arm: arm, net: c, br: bufio.NewReader(c), request: []byte(request),
		closed: context.AfterFunc(ctx, func() { c.Close() }),
	}, nil
}

func (c *conn) close() {
	c.closed()
	c.net.Close()
}

// timing is one request's: the time to its first event, and the delay of each
// later one from its writing at the upstream to its receipt here.
type timing struct {
	first time.Duration
	later []time.Duration
}

var (
	dataPrefix = []byte("data: ")
	doneLine   = []byte("data: [DONE]\n")
	stampKey   = []byte(`"sent_ns":`)
)

// call sends one request and times its events; it appends to later.
func (c *conn) call(later []time.Duration) (timing, error) {
	t := timing{later: later}
	start := time.Now()
	if _, err := c.net.Write(c.request); err != nil {
		return t, fmt.Errorf("bench proxy: %s: write request: %w", c.arm, err)
	}
	res, err := http.ReadResponse(c.br, nil)
	if err != nil {
		return t, fmt.Errorf("bench proxy: %s: read answer: %w", c.arm, err)
	}
	if res.StatusCode != http.StatusOK {
		return t, fmt.Errorf("bench proxy: %s: got status %d, want 200", c.arm, res.StatusCode)
	}
	body := bufio.NewReaderSize(res.Body, 4096)
	done := false
	for {
		line, err := body.ReadSlice('\n')
		at := time.Now()
		switch {
		case err == io.EOF && done:
			return t, nil
		case err != nil:
			return t, fmt.Errorf("bench proxy: %s: read event: %w", c.arm, err)
		case bytes.Equal(line, doneLine):
			done = true
		case !bytes.HasPrefix(line, dataPrefix):
		case t.first == 0:
			t.first = at.Sub(start)
		default:
			sent, err := stamp(line)
			if err != nil {
				return t, err
			}
			t.later = append(t.later, at.Sub(sent))
		}
	}
}

// stamp is when the upstream wrote an event.
func stamp(line []byte) (time.Time, error) {
	_, rest, ok := bytes.Cut(line, stampKey)
	digits, _, closed := bytes.Cut(rest, []byte("}"))
	ns, err := strconv.ParseInt(string(digits), 10, 64)
	if !ok || !closed || err != nil {
		return time.Time{}, fmt.Errorf("bench proxy: got event %q, want one with %s", line, stampKey)
	}
	return time.Unix(0, ns), nil
}
