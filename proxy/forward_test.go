package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptrace"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// onConn is a trip whose connection is at hand.
func onConn(reused bool) *trip {
	t := &trip{now: time.Now, window: staleWindow}
	t.trace().GotConn(httptrace.GotConnInfo{Reused: reused})
	return t
}

func TestOnlyAKeptConnectionThatTheServerClosedIsStale(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{errors.New("http: server closed idle connection"), true},
		{io.EOF, true},
		{fmt.Errorf("net/http: transport connection broken: %w", io.EOF), true},
		{fmt.Errorf("read tcp: %w", syscall.ECONNRESET), true},
		{fmt.Errorf("write tcp: %w", syscall.EPIPE), true}, // a part may have been read, as before a reset
		{fmt.Errorf("write tcp: %w", net.ErrClosed), true}, // by the transport, which read the end first
		{io.ErrUnexpectedEOF, false},
		{syscall.ECONNREFUSED, false},
		{syscall.ETIMEDOUT, false},
		{context.DeadlineExceeded, false},
		{errors.New("net/http: HTTP/1.x transport connection broken: malformed HTTP response"), false},
	} {
		synctest.Test(t, func(t *testing.T) { // its clock stands still
			if got := onConn(true).stale(c.err); got != c.want {
				t.Errorf("%v on a kept connection: got %v, want %v", c.err, got, c.want)
			}
			if onConn(false).stale(c.err) {
				t.Errorf("%v on a new connection: got stale, want not", c.err)
			}
			answered := onConn(true)
			answered.trace().GotFirstResponseByte()
			if answered.stale(c.err) {
				t.Errorf("%v after a byte of an answer: got stale, want not", c.err)
			}
		})
	}
}

func TestCloseAfterTheWindowIsNotStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trip := onConn(true)
		time.Sleep(staleWindow)
		if !trip.stale(io.EOF) {
			t.Errorf("closed after %v: got not stale, want stale", staleWindow)
		}
		time.Sleep(time.Nanosecond)
		if trip.stale(io.EOF) {
			t.Errorf("closed after more than %v: got stale, want not", staleWindow)
		}
	})
}

// A step of the wall clock must neither forbid a replay nor allow one.
func TestStaleWindowIsMeasuredOnTheMonotonicClock(t *testing.T) {
	if at := onConn(true).sentAt.String(); !strings.Contains(at, " m=") {
		t.Errorf("sent at %s, want a monotonic reading", at)
	}
}
