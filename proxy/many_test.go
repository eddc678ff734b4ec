package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
)

func TestManyStreamsAtOnceEachEndOnce(t *testing.T) {
	const n = 200
	var all sync.WaitGroup
	all.Add(n)
	together := make(chan struct{})
	go func() { all.Wait(); close(together) }() // ends when all streams are open
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, chunk("a"))
		w.(http.Flusher).Flush()
		all.Done()
		<-together
		io.WriteString(w, chunk("b")+doneChunk)
	})
	var clients sync.WaitGroup
	for range n {
		clients.Go(func() {
			res, err := r.client.Post(r.server.URL+chatPath, "application/json", strings.NewReader("{}"))
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			if b, err := io.ReadAll(res.Body); err != nil || string(b) != chunk("a")+chunk("b")+doneChunk {
				t.Errorf("got %d bytes, %v", len(b), err)
			}
		})
	}
	clients.Wait()
	ids := map[string]bool{}
	for range n {
		rec := r.seen.record(t)
		ids[rec.ID] = true
		if rec.Contents != 2 || rec.Outcome != OutcomeForwarded {
			t.Errorf("record: got %+v, want 2 contents", rec)
		}
	}
	r.idle()
	r.seen.noMore(t)
	if len(ids) != n {
		t.Errorf("ids: got %d, want %d", len(ids), n)
	}
}

func TestThousandIdleStreamsAreHeldAtOnce(t *testing.T) {
	const n = 1000
	quit := make(chan struct{})
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
		parts(w, nil, chunk("a"))
		<-quit
		io.WriteString(w, doneChunk)
	})
	var open []*http.Response
	for range n {
		open = append(open, r.post(chatPath, "{}"))
	}
	if got := r.proxy.InFlight(); got != n {
		t.Errorf("in flight: got %d, want %d", got, n)
	}
	close(quit)
	for _, res := range open {
		if got := text(t, res); got != chunk("a")+doneChunk {
			t.Fatalf("got %q, want the whole stream", got)
		}
	}
	r.idle()
}

func TestMemoryIsFlatOverManyStreams(t *testing.T) {
	r := newRig(t, stream(roleChunk, chunk("a"), usageChunk, doneChunk))
	r.proxy.observer, r.proxy.events = nil, nil // the watcher keeps every record
	run := func(n int) uint64 {
		for range n {
			res, err := r.client.Post(r.server.URL+chatPath, "application/json", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := run(100)
	if after := run(1500); after > before+1<<20 {
		t.Errorf("heap: got %d bytes after 1500 streams more, want about %d", after, before)
	}
}

func TestClientThatWaitsForContinueGetsIt(t *testing.T) {
	bothPaths(t, func(t *testing.T, path string) {
		r := newRig(t, echo)
		if got := r.continued(path); !strings.HasPrefix(got, "2 ") {
			t.Errorf("got %s, want the 2 bytes", got)
		}
	})
}

// TestUpstreamsContinueIsNotAddedToLulls lets the upstream say 100 at once, twice,
// and then read: whichever of the two servers is faster, the client gets one.
func TestUpstreamsContinueIsNotAddedToLulls(t *testing.T) {
	bothPaths(t, func(t *testing.T, path string) {
		url := rawServer(t, func(_ int, c net.Conn) {
			br := bufio.NewReader(c)
			req, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			io.WriteString(c, strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 2))
			body, _ := io.ReadAll(req.Body)
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
		})
		if got := newRigTo(t, url).continued(path); got != "{}" {
			t.Errorf("got %q, want the 2 bytes", got)
		}
	})
}

// continued sends a body once the proxy says 100, and returns the answer's body: it
// fails the test unless exactly one 100 came before the answer.
func (r *rig) continued(path string) string {
	r.t.Helper()
	c, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n", path)
	br := bufio.NewReader(c)
	if line, err := br.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100 ") {
		r.t.Fatalf("got %q, %v; want 100 before the body is sent", line, err)
	}
	if _, err := br.ReadString('\n'); err != nil {
		r.t.Fatal(err)
	}
	io.WriteString(c, "{}")
	res, err := http.ReadResponse(br, nil)
	if err != nil || res.StatusCode != 200 {
		r.t.Fatalf("got %v, %v; want one answer after one 100", res, err)
	}
	return text(r.t, res)
}

// TestAnswersOnOneConnectionStayApart sends different requests over one
// connection, so that what one leaves behind would show in the next.
func TestAnswersOnOneConnectionStayApart(t *testing.T) {
	r := newRig(t, echo)
	for i := range 30 {
		body := strings.Repeat("x", i*997)
		path := chatPath
		if i%3 == 0 {
			path = "/other"
		}
		if got, want := text(t, r.post(path, body)), fmt.Sprintf("%d ", len(body)); !strings.HasPrefix(got, want) {
			t.Errorf("request %d: got %s, want %s bytes", i, got, want)
		}
	}
}
