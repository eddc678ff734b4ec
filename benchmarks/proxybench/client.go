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
	events  int
	net     net.Conn
	br      *bufio.Reader
	request []byte
	closed  func() bool // ends the watch on the context
}

// target is what a client talks to.
type target struct {
	arm, addr string
	query     string   // of the request's URL, with its question mark
	headers   []string // lines that each request to it carries
	prompt    int      // bytes
	events    int      // that an answer has
}

func dial(ctx context.Context, to target) (*conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", to.addr)
	if err != nil {
		return nil, fmt.Errorf("bench proxy: dial %s: %w", to.arm, err)
	}
	body := `{"model":"bench","stream":true,"max_tokens":64,"messages":[{"role":"user","content":"` + strings.Repeat("word ", to.prompt/5) + `"}]}`
	head := []string{"POST " + path + to.query + " HTTP/1.1", "Host: bench", "Content-Type: application/json", "Content-Length: " + strconv.Itoa(len(body))}
	request := strings.Join(append(head, to.headers...), "\r\n") + "\r\n\r\n" + body
	return &conn{
		arm: to.arm, events: to.events, net: c, br: bufio.NewReader(c), request: []byte(request),
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
	stampKey   = []byte(`sent_ns=`)
)

// call sends one request and times its events from start; it appends to later. An
// event without the upstream's stamp is the proxy's own and counts for nothing.
func (c *conn) call(start time.Time, later []time.Duration) (timing, error) {
	t := timing{later: later}
	if _, err := c.net.Write(c.request); err != nil {
		return t, fmt.Errorf("bench proxy: %s: write request: %w", c.arm, err)
	}
	res, err := http.ReadResponse(c.br, nil)
	if err != nil {
		return t, fmt.Errorf("bench proxy: %s: read answer: %w", c.arm, err)
	}
	if res.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(res.Body, 300)) // what there is of it
		return t, fmt.Errorf("bench proxy: %s: got status %d, want 200: %s", c.arm, res.StatusCode, said)
	}
	body := bufio.NewReaderSize(res.Body, 4096)
	done, stamped := false, 0
	for {
		line, err := body.ReadSlice('\n')
		at := time.Now()
		switch {
		case err == io.EOF && done:
			if stamped != c.events {
				return t, fmt.Errorf("bench proxy: %s: got %d of the upstream's events, want %d", c.arm, stamped, c.events)
			}
			return t, nil
		case err != nil:
			return t, fmt.Errorf("bench proxy: %s: read event: %w", c.arm, err)
		case bytes.Equal(line, doneLine):
			done = true
			continue
		case !bytes.HasPrefix(line, dataPrefix):
			continue
		}
		sent, ok := stamp(line)
		switch {
		case !ok:
			continue
		case stamped == 0:
			t.first = at.Sub(start)
		default:
			t.later = append(t.later, at.Sub(sent))
		}
		stamped++
	}
}

// stamp is when the upstream wrote an event, which it says in the event's text:
// what a gateway that writes events anew keeps.
func stamp(line []byte) (time.Time, bool) {
	_, rest, ok := bytes.Cut(line, stampKey)
	digits, _, closed := bytes.Cut(rest, []byte(`"`))
	ns, err := strconv.ParseInt(string(digits), 10, 64)
	if !ok || !closed || err != nil {
		return time.Time{}, false
	}
	return time.Unix(0, ns), true
}
