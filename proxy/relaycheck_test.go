package proxy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// late is a delay of an engine's that some relays do not wait for.
const late = 300 * time.Millisecond

// relayCheck is one thing that any streaming relay must do. It asks a relay
// before an upstream of its own, both on real listeners, and says what is wrong.
// The relay is Lull's in TestRelayDoesAllThatItMust, and one with a known fault
// in TestChecksFailOnRelaysThatAreWrong.
type relayCheck struct {
	name string
	run  func(*trial) error
}

var relayChecks = []relayCheck{
	{"each event arrives before the next is sent", func(r *trial) error { return r.lockStep("text/event-stream", 247) }},
	{"a media type may have a parameter", func(r *trial) error { return r.lockStep("text/event-stream;charset=utf-8", 20) }},
	{"lines of JSON arrive one by one", func(r *trial) error { return r.lockStep("application/x-ndjson", 20) }},
	{"an answer of unknown length arrives as it comes", func(r *trial) error { return r.lockStep("application/octet-stream", 20) }},
	{"headers arrive before a late body", checkHeadersFirst},
	{"a stream is not compressed", func(r *trial) error {
		return r.bytesEqual(http.Header{"Accept-Encoding": {"gzip"}}, nil, chunk("a"), chunk("b"))
	}},
	{"a compressed answer passes unchanged", checkCompressed},
	{"events cut anywhere pass unchanged", checkCutAnywhere},
	{"a character cut between reads passes", func(r *trial) error {
		c := chunk("渐")
		cut := strings.Index(c, "渐") + 1
		return r.bytesEqual(nil, nil, c[:cut], c[cut:])
	}},
	{"an event cut inside its usage passes", func(r *trial) error { return r.bytesEqual(nil, nil, usageChunk[:40], usageChunk[40:], doneChunk) }},
	{"a line of any length passes", func(r *trial) error {
		return r.bytesEqual(nil, nil, "data: "+strings.Repeat("x", 70_000)+"\n\n", "data: "+strings.Repeat("y", 4<<20)+"\n\n")
	}},
	{"only LF, CR and CRLF end a line", func(r *trial) error {
		return r.bytesEqual(nil, nil, "data: a\u2028b\u2029c\u0085d\ve\ff\r\n\r\n", "data: g\r\r")
	}},
	{"comments pass", func(r *trial) error { return r.bytesEqual(nil, nil, ":\n\n", ": ping\n\n", chunk("a")) }},
	{"what the relay does not know survives", func(r *trial) error {
		return r.bytesEqual(nil, nil, `data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","x_new":{"b":1,"a":[]},"function":{"arguments":"{\"a\": 1e2}"}}]}}],"z":0.10}`+"\n\n")
	}},
	{"the last line needs no line feed", func(r *trial) error { return r.bytesEqual(nil, nil, chunk("a"), `data: {"last":true}`) }},
	{"an error keeps its status and its body", checkStatus},
	{"a cut answer is a broken transfer", checkCut},
	{"a client that leaves cancels the upstream", func(r *trial) error { return r.leaves(chunk("a")) }},
	{"a client that leaves before the first byte cancels the upstream", func(r *trial) error { return r.leaves("") }},
	{"a flowing stream has no total limit", checkNoTotalLimit},
	{"a late header is waited for", checkLateHeader},
	{"a refusal is not asked for again", checkAskedOnce},
	{"hop-by-hop fields stay behind", checkHop},
	{"nothing is asked for that the client did not ask", checkRequestUnchanged},
	{"a client that reads nothing holds the upstream back", checkBackPressure},
}

// trial is a relay and what a check needs.
type trial struct {
	relay   func(upstream string) *http.Server
	cleanup func(func())
	// patience is how long to wait for what a right relay does at once.
	patience time.Duration
}

// start runs an upstream and the relay before it. quit ends with the trial.
func (r *trial) start(h func(w http.ResponseWriter, r *http.Request, quit <-chan struct{})) (url string, client *http.Client) {
	quit := make(chan struct{})
	up := quietServer(&http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h(w, r, quit) })})
	front := quietServer(r.relay(up.URL))
	tr := &http.Transport{DisableCompression: true}
	r.cleanup(func() {
		close(quit)
		tr.CloseIdleConnections()
		front.CloseClientConnections()
		front.Close()
		up.CloseClientConnections()
		up.Close()
	})
	return front.URL, &http.Client{Transport: tr}
}

// ask posts a chat request with a header.
func (r *trial) ask(client *http.Client, url string, header http.Header, body string) (*http.Response, error) {
	req, err := http.NewRequest("POST", url+chatPath, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	return client.Do(req)
}

// parts writes pieces with a flush after each.
func parts(w http.ResponseWriter, header http.Header, pieces ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for k, v := range header {
		w.Header()[k] = v
	}
	for _, p := range pieces {
		io.WriteString(w, p)
		w.(http.Flusher).Flush()
	}
}

// atOnce runs f, which must not take longer than the trial's patience. What it
// waits for then ends with the trial.
func (r *trial) atOnce(what string, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(r.patience):
		return fmt.Errorf("%s: nothing in %v", what, r.patience)
	}
}

// lockStep wants each of a few events of a size before the next is sent.
func (r *trial) lockStep(media string, size int) error {
	got := make(chan struct{}, 5)
	url, client := r.start(func(w http.ResponseWriter, _ *http.Request, quit <-chan struct{}) {
		for range 5 {
			parts(w, http.Header{"Content-Type": {media}}, strings.Repeat("x", size-1)+"\n")
			select {
			case <-got:
			case <-quit:
				return
			}
		}
	})
	return r.atOnce("an event", func() error {
		res, err := r.ask(client, url, nil, "{}")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		for range 5 {
			if _, err := io.ReadFull(res.Body, make([]byte, size)); err != nil {
				return err
			}
			got <- struct{}{}
		}
		return nil
	})
}

func checkHeadersFirst(r *trial) error {
	url, client := r.start(func(w http.ResponseWriter, _ *http.Request, quit <-chan struct{}) {
		parts(w, nil)
		w.(http.Flusher).Flush()
		<-quit
	})
	return r.atOnce("the header", func() error {
		res, err := r.ask(client, url, nil, "{}")
		if err == nil {
			res.Body.Close()
		}
		return err
	})
}

// bytesEqual wants an answer as it was sent. A piece leaves when the client has
// as many bytes as the ones before it, or a little later: pieces are read apart.
func (r *trial) bytesEqual(request, answer http.Header, pieces ...string) error {
	had, pause := make(chan struct{}, len(pieces)), late
	if len(pieces) > 10 {
		pause = 5 * time.Millisecond
	}
	url, client := r.start(func(w http.ResponseWriter, _ *http.Request, quit <-chan struct{}) {
		for _, p := range pieces {
			parts(w, answer, p)
			select {
			case <-had:
			case <-time.After(pause):
			case <-quit:
				return
			}
		}
	})
	res, err := r.ask(client, url, request, "{}")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	got, rest, buf := 0, strings.Join(pieces, ""), make([]byte, 64<<10)
	for i, sent := 0, 0; ; {
		n, err := res.Body.Read(buf)
		if !strings.HasPrefix(rest, string(buf[:n])) {
			return fmt.Errorf("after %d bytes: got %.60q, want %.60q", got, buf[:n], rest)
		}
		got, rest = got+n, rest[n:]
		for i < len(pieces) && got >= sent+len(pieces[i]) {
			sent += len(pieces[i])
			i++
			had <- struct{}{}
		}
		switch {
		case err == io.EOF && rest == "":
			return nil
		case err != nil:
			return fmt.Errorf("after %d bytes: got %w, want %d more", got, err, len(rest))
		}
	}
}

func checkCompressed(r *trial) error {
	var z bytes.Buffer
	zw := gzip.NewWriter(&z)
	io.WriteString(zw, chunk("a"))
	zw.Flush()
	first := z.String()
	io.WriteString(zw, chunk("b"))
	zw.Close()
	return r.bytesEqual(nil, http.Header{"Content-Encoding": {"gzip"}}, first, z.String()[len(first):])
}

// checkCutAnywhere sends a stream in bytes, with every line end.
func checkCutAnywhere(r *trial) error {
	for _, end := range []string{"\n", "\r\n", "\r"} {
		all := strings.ReplaceAll(roleChunk+chunk("渐")+usageChunk+doneChunk, "\n", end)
		var single []string
		for i := range len(all) {
			single = append(single, all[i:i+1])
		}
		if err := r.bytesEqual(nil, nil, single...); err != nil {
			return fmt.Errorf("lines ending with %q: %w", end, err)
		}
	}
	return nil
}

func checkStatus(r *trial) error {
	const body = `{"error":{"message":"slow down"}}` // no line feed at its end
	url, client := r.start(func(w http.ResponseWriter, _ *http.Request, _ <-chan struct{}) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(429)
		io.WriteString(w, body)
	})
	res, err := r.ask(client, url, http.Header{"Accept": {"text/event-stream"}}, `{"stream":true}`)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 429 || string(got) != body || res.Header.Get("Retry-After") != "7" {
		return fmt.Errorf("got %d %q, %v; want 429 with its body", res.StatusCode, got, err)
	}
	return nil
}

func checkCut(r *trial) error {
	url, client := r.start(func(w http.ResponseWriter, _ *http.Request, _ <-chan struct{}) {
		parts(w, nil, chunk("a"), chunk("b"))
		panic(http.ErrAbortHandler)
	})
	res, err := r.ask(client, url, nil, "{}")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err == nil {
		return fmt.Errorf("got %d bytes and a clean end, want a broken transfer", len(got))
	}
	if want := chunk("a") + chunk("b"); string(got) != want {
		return fmt.Errorf("got %d bytes before the break, want %d", len(got), len(want))
	}
	return nil
}

// leaves wants the upstream's request cancelled once its client is gone.
func (r *trial) leaves(first string) error {
	called, gone := make(chan struct{}), make(chan struct{}, 1)
	url, _ := r.start(func(w http.ResponseWriter, r *http.Request, quit <-chan struct{}) {
		_, _ = io.Copy(io.Discard, r.Body)
		if first != "" {
			parts(w, nil, first)
		}
		close(called)
		select {
		case <-r.Context().Done():
			gone <- struct{}{}
		case <-quit:
		}
	})
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		return err
	}
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", chatPath)
	_ = c.SetDeadline(time.Now().Add(r.patience))
	select {
	case <-called:
	case <-time.After(r.patience):
		return errors.New("the upstream was never asked")
	}
	if first != "" {
		if _, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
			return err
		}
	}
	c.Close()
	select {
	case <-gone:
		return nil
	case <-time.After(r.patience):
		return errors.New("the upstream still works for a client that left")
	}
}

// checkNoTotalLimit streams for longer than late.
func checkNoTotalLimit(r *trial) error {
	const n = 8
	url, client := r.start(func(w http.ResponseWriter, r *http.Request, _ <-chan struct{}) {
		tick := time.NewTicker(late / 4)
		defer tick.Stop()
		for range n {
			parts(w, nil, chunk("a"))
			<-tick.C
		}
	})
	res, err := r.ask(client, url, nil, "{}")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if got, err := io.ReadAll(res.Body); err != nil || len(got) != n*len(chunk("a")) {
		return fmt.Errorf("got %d bytes and %v, want all %d events", len(got), err, n)
	}
	return nil
}

func checkLateHeader(r *trial) error {
	url, client := r.start(func(w http.ResponseWriter, _ *http.Request, quit <-chan struct{}) {
		select {
		case <-time.After(2 * late): // a long prefill
		case <-quit:
		}
		parts(w, nil, chunk("a"))
	})
	res, err := r.ask(client, url, nil, "{}")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if got, err := io.ReadAll(res.Body); err != nil || string(got) != chunk("a") || res.StatusCode != 200 {
		return fmt.Errorf("got %d %q, %v; want the late answer", res.StatusCode, got, err)
	}
	return nil
}

func checkAskedOnce(r *trial) error {
	for _, status := range []int{408, 429, 500, 503} {
		var asked atomic.Int64
		url, client := r.start(func(w http.ResponseWriter, _ *http.Request, _ <-chan struct{}) {
			asked.Add(1)
			w.WriteHeader(status)
		})
		res, err := r.ask(client, url, nil, "{}")
		if err != nil {
			return err
		}
		res.Body.Close()
		if n := asked.Load(); n != 1 || res.StatusCode != status {
			return fmt.Errorf("%d: asked %d times, answered %d; want it passed on at once", status, n, res.StatusCode)
		}
	}
	return nil
}

func checkHop(r *trial) error {
	seen := make(chan http.Header, 1)
	url, client := r.start(func(w http.ResponseWriter, r *http.Request, _ <-chan struct{}) {
		seen <- r.Header.Clone()
		w.Header().Set("Keep-Alive", "timeout=9")
	})
	res, err := r.ask(client, url, http.Header{
		"Connection": {"foo"}, "Foo": {"1"}, "Proxy-Authorization": {"secret"}, "Te": {"gzip"}, "Keep-Alive": {"1"},
	}, "{}")
	if err != nil {
		return err
	}
	res.Body.Close()
	got := <-seen
	if v := strings.Join(got["Connection"], ","); strings.Contains(v, "foo") {
		return fmt.Errorf("the upstream got Connection: %q, want the relay's own", v)
	}
	for _, k := range []string{"Foo", "Proxy-Authorization", "Te", "Keep-Alive"} {
		if v, ok := got[k]; ok {
			return fmt.Errorf("the upstream got %s: %q, want none", k, v)
		}
	}
	if v, ok := res.Header["Keep-Alive"]; ok {
		return fmt.Errorf("the client got Keep-Alive: %q, want none", v)
	}
	return nil
}

func checkRequestUnchanged(r *trial) error {
	type request struct {
		body   string
		length int64
		coding string
	}
	for _, body := range []string{
		`{"stream":true,"messages":[]}`, `{"stream":true,"stream_options":{"include_usage":false}}`, "{\"a\" : 1.0,\n\"a\":\"\\u00e9\"}",
	} {
		seen := make(chan request, 1)
		url, client := r.start(func(_ http.ResponseWriter, r *http.Request, _ <-chan struct{}) {
			b, _ := io.ReadAll(r.Body)
			seen <- request{string(b), r.ContentLength, r.Header.Get("Accept-Encoding")}
		})
		res, err := r.ask(client, url, nil, body)
		if err != nil {
			return err
		}
		res.Body.Close()
		want := request{body, int64(len(body)), ""}
		select {
		case got := <-seen:
			if got != want {
				return fmt.Errorf("the upstream got %+v, want %+v", got, want)
			}
		case <-time.After(r.patience):
			return fmt.Errorf("the upstream got nothing whole, want %+v", want)
		}
	}
	return nil
}

// checkBackPressure has a client that reads nothing of an answer which is larger
// than all socket buffers on its way.
func checkBackPressure(r *trial) error {
	const most = 64 << 20
	var sent atomic.Int64
	finished := make(chan struct{})
	url, client := r.start(func(w http.ResponseWriter, r *http.Request, _ <-chan struct{}) {
		w.Header().Set("Content-Type", "text/event-stream")
		piece := bytes.Repeat([]byte("x"), 256<<10)
		for sent.Load() < most {
			n, err := w.Write(piece)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
		close(finished)
	})
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	req, _ := http.NewRequestWithContext(ctx, "POST", url+chatPath, strings.NewReader("{}"))
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	for before := int64(-1); before != sent.Load(); { // nothing but time tells that a sender stands still
		before = sent.Load()
		select {
		case <-finished:
			return fmt.Errorf("the upstream sent %d bytes for a client that reads none", sent.Load())
		case <-time.After(late):
		}
	}
	return nil
}
