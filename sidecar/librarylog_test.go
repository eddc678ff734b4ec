package sidecar

import (
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// full is a listener without file descriptors, until it is closed.
type full struct {
	net.Listener
	tries int
}

func (f *full) Accept() (net.Conn, error) {
	if f.tries++; f.tries > 3 {
		return nil, net.ErrClosed
	}
	return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: f.Addr(), Err: os.NewSyscallError("accept4", syscall.EMFILE)}
}

func TestLackOfFileDescriptorsIsWarnedOfOnceInAWhile(t *testing.T) {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	logs, now := &syncBuffer{}, time.Unix(1000, 0)
	out := LibraryLog(slog.New(slog.NewTextHandler(logs, nil)), func() time.Time { return now })
	serve := func() {
		s := &http.Server{ErrorLog: log.New(out, "", 0), ReadHeaderTimeout: time.Second}
		_ = s.Serve(&full{Listener: socket})
	}
	for _, want := range []struct {
		later time.Duration
		lines int
	}{{0, 1}, {sayAgain - 1, 1}, {1, 2}} {
		now = now.Add(want.later)
		serve()
		if got := strings.Count(logs.String(), "level=WARN"); got != want.lines {
			t.Errorf("got %d warnings, want %d:\n%s", got, want.lines, logs)
		}
	}
	for _, text := range []string{"no file descriptors are left: new connections wait until others end; raise the limit (ulimit -n", "accept4: too many open files"} {
		if !strings.Contains(logs.String(), text) {
			t.Errorf("the log does not say %q:\n%s", text, logs)
		}
	}
}

func TestTextThatAServerSendsUnaskedIsInNoLog(t *testing.T) {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { // ends after one connection
		defer close(ended)
		c, err := socket.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = c.Read(make([]byte, 4096))
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
		fmt.Fprint(c, "the secret answer")
		_, _ = c.Read(make([]byte, 1)) // until the transport has closed it
	}()
	defer func() { socket.Close(); <-ended }()
	logs := &syncBuffer{}
	log.SetFlags(0)
	log.SetOutput(LibraryLog(slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug})), time.Now))
	defer func() { log.SetOutput(os.Stderr); log.SetFlags(log.LstdFlags) }()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Get("http://" + socket.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body) // to its end, so that the connection is kept
	res.Body.Close()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(logs.String(), "Unsolicited response"); time.Sleep(time.Millisecond) { // the transport's own goroutine
		if time.Now().After(deadline) {
			t.Fatalf("not in our log: %s", logs)
		}
	}
	if strings.Contains(logs.String(), "secret") || !strings.Contains(logs.String(), "level=DEBUG msg=net/http said=\"Unsolicited response received on idle HTTP channel\"") {
		t.Errorf("got %s", logs)
	}
}
