package proxy

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestTurnedAwayCallerIsAnsweredThoughItsBodyDoesNotCome: a caller without a key must
// not keep a connection by never sending what it declared.
func TestTurnedAwayCallerIsAnsweredThoughItsBodyDoesNotCome(t *testing.T) {
	for name, c := range map[string]struct {
		draining bool
		path     string
		status   int
	}{
		"no key, interpreted":   {false, chatPath, 401},
		"no key, passed":        {false, "/v1/models", 401},
		"draining, interpreted": {true, chatPath, 503},
		"draining, passed":      {true, "/v1/models", 503},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, stream(doneChunk), withKeys("known"))
			if c.draining {
				r.server.Config.Handler = r.proxy.Draining(time.Now().Add(time.Minute))
			}
			conn, err := net.Dial("tcp", r.server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", c.path)
			_ = conn.SetReadDeadline(time.Now().Add(wait))
			br := bufio.NewReader(conn)
			res, err := http.ReadResponse(br, nil)
			if err != nil || res.StatusCode != c.status {
				t.Fatalf("got %+v, %v; want %d though the body does not come", res, err, c.status)
			}
			text(t, res)
			if _, err := br.ReadByte(); err == nil || isTimeout(err) {
				t.Errorf("then %v, want the connection closed", err)
			}
		})
	}
}

// TestTurnedAwayCallerThatSentItsBodyKeepsItsConnection: to refuse a key must not
// cost a dial each time.
func TestTurnedAwayCallerThatSentItsBodyKeepsItsConnection(t *testing.T) {
	r := newRig(t, stream(doneChunk), withKeys("known"))
	conn, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	br := bufio.NewReader(conn)
	for _, key := range []string{"wrong", "wrong", "known"} {
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 2\r\n\r\n{}", chatPath, key)
		_ = conn.SetReadDeadline(time.Now().Add(wait))
		res, err := http.ReadResponse(br, nil)
		if want := map[string]int{"wrong": 401, "known": 200}[key]; err != nil || res.StatusCode != want {
			t.Fatalf("key %s: got %+v, %v; want %d on the same connection", key, res, err, want)
		}
		text(t, res)
	}
}

func isTimeout(err error) bool {
	ne, ok := err.(net.Error)
	return ok && ne.Timeout()
}
