package proxy

import (
	"bufio"
	"bytes"
	"net"
	"net/http"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
)

// headBytes is how much of an answer's beginning is looked at for what net/http takes
// out of its header.
const headBytes = 16 << 10

// answerHead keeps the beginning of an answer as its connection had it. net/http
// removes Connection where it says close, and what else it named would pass as if it
// were the client's.
type answerHead struct {
	state atomic.Int32 // one of the three below
	mu    sync.Mutex
	bytes []byte
}

const (
	headUnread  int32 = iota // nobody asks
	headAwaited              // the next read begins an answer
	headRead                 // and this one goes on with it
)

// expect says that a request is about to go.
func (h *answerHead) expect() {
	if h != nil {
		h.state.Store(headAwaited)
	}
}

// read is shown what was read.
func (h *answerHead) read(p []byte) {
	state := h.state.Load()
	if state == headUnread {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if state == headAwaited && h.state.CompareAndSwap(headAwaited, headRead) {
		h.bytes = h.bytes[:0]
	}
	h.bytes = append(h.bytes, p[:min(len(p), headBytes-len(h.bytes))]...)
}

// restore puts back into an answer's header the Connection that net/http took out, for
// others to obey and remove.
func (h *answerHead) restore(res *http.Response) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state.Store(headUnread)
	if named := connectionIn(h.bytes, res); len(named) > 0 {
		res.Header["Connection"] = named
	}
	h.bytes = nil
}

func connectionIn(head []byte, res *http.Response) []string {
	if _, there := res.Header["Connection"]; there || !res.Close {
		return nil
	}
	r := textproto.NewReader(bufio.NewReader(bytes.NewReader(head)))
	for {
		status, err := r.ReadLine()
		if err != nil {
			return nil
		}
		header, _ := r.ReadMIMEHeader() // what there is of one that is longer
		if !strings.HasPrefix(status, "HTTP/1.1 1") {
			return header["Connection"]
		}
	}
}

// headOf is that of a connection that the transport dialled.
func headOf(conn net.Conn) *answerHead {
	if c, ok := conn.(*hearingConn); ok {
		return &c.head
	}
	return nil
}
