package proxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestAnswerBeforeTheBodyWasTakenReachesTheClient: a server that refuses a request by
// its header closes with most of the body unread, which resets the connection.
func TestAnswerBeforeTheBodyWasTakenReachesTheClient(t *testing.T) {
	url := rawServer(t, func(_ int, c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 3\r\n\r\nbig")
		}
	})
	body := `{"x":"` + strings.Repeat("x", 8<<20) + `"}`
	for range 20 { // whether the write or the read fails first is the kernel's word
		r := newRigTo(t, url)
		res := r.post(chatPath, body)
		if got := text(t, res); res.StatusCode != 413 || got != "big" {
			t.Fatalf("got %d %q, want the upstream's 413", res.StatusCode, got)
		}
		if rec := r.seen.record(t); rec.Outcome != OutcomeUpstreamRefused {
			t.Errorf("got %s, want %s", rec.Outcome, OutcomeUpstreamRefused)
		}
	}
}

// TestUpstreamThatTakesNoBodyAndAnswersNothingIs502: to hear out a server that says
// nothing costs its client nothing.
func TestUpstreamThatTakesNoBodyAndAnswersNothingIs502(t *testing.T) {
	url := rawServer(t, func(_ int, c net.Conn) { _, _ = http.ReadRequest(bufio.NewReader(c)) })
	r := newRigTo(t, url)
	res := r.post(chatPath, `{"x":"`+strings.Repeat("x", 8<<20)+`"}`)
	if got := text(t, res); res.StatusCode != 502 || !strings.Contains(got, CodeUnreachable) {
		t.Errorf("got %d %s, want 502", res.StatusCode, got)
	}
}

// brokenConn fails every write and reads nothing until it is closed.
type brokenConn struct {
	net.Conn
	err    error
	closed chan struct{}
}

func (c brokenConn) Write([]byte) (int, error) { return 0, c.err }
func (c brokenConn) Read([]byte) (int, error)  { <-c.closed; return 0, io.EOF }

func TestFailedWriteWaitsForItsReaderAndNoLongerThanItsGrace(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		reads bool // to the end, before
		waits bool
	}{
		"reset, more may come":  {syscall.ECONNRESET, false, true},
		"pipe, more may come":   {syscall.EPIPE, false, true},
		"reset, all was read":   {syscall.ECONNRESET, true, false},
		"closed by its own end": {net.ErrClosed, false, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			closed := make(chan struct{})
			conn, _ := hearing(brokenConn{err: c.err, closed: closed}, nil)
			if c.reads {
				close(closed)
				_, _ = conn.Read(nil)
			}
			began := time.Now()
			_, err := conn.Write([]byte("x"))
			if took := time.Since(began); !errors.Is(err, c.err) || (took == answerGrace) != c.waits {
				t.Errorf("%s: got %v after %v, want %v, waited: %v", name, err, took, c.err, c.waits)
			}
		})
	}
}
