package proxy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
)

// neverAsked is a gate for what must not be gated.
func neverAsked(t *testing.T) rigOption {
	return withGate(gateFunc(func(_ context.Context, r Request) Verdict {
		t.Errorf("gate: asked for %s, want it passed", r.Path)
		return Verdict{Forward: true}
	}))
}

func TestOtherRequestsPassUnchanged(t *testing.T) {
	type seen struct{ method, uri, body string }
	got := make(chan seen, 1)
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- seen{r.Method, r.RequestURI, string(b)}
		w.Header()["Content-Type"] = nil
		w.WriteHeader(418)
		io.WriteString(w, "<html>tea")
	}, neverAsked(t))
	for _, want := range []seen{
		{"GET", "/v1/models", ""},
		{"GET", chatPath, ""},
		{"PUT", chatPath, "x"},
		{"POST", chatPath + "/", "{}"},
		{"POST", "/v1/embeddings", `{"input":"x"}`},
		{"POST", "/v2/models/m/ready", ""},
		{"DELETE", "/a%2Fb//c?x=1;y=%zz&z", ""},
		{"PURGE", "/unknown?", "body"},
	} {
		c, err := net.Dial("tcp", r.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", want.method, want.uri, len(want.body), want.body)
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s %s: %v", want.method, want.uri, err)
		}
		body := text(t, res)
		c.Close()
		if ct := res.Header["Content-Type"]; res.StatusCode != 418 || body != "<html>tea" || ct != nil {
			t.Errorf("%s %s: got %d %v %q, want 418, no guessed type", want.method, want.uri, res.StatusCode, ct, body)
		}
		if s := <-got; s != want && s.uri+"?" != want.uri {
			t.Errorf("upstream: got %q, want %q", s, want)
		}
	}
	r.idle()
	r.seen.noMore(t)
}

func TestUpstreamPathGoesInFront(t *testing.T) {
	got := make(chan string, 2)
	r := newRig(t, func(_ http.ResponseWriter, r *http.Request) { got <- r.RequestURI })
	r2 := newRigTo(t, r.upstream.URL+"/base/")
	text(t, r2.post(chatPath+"?a=b", "{}"))
	text(t, r2.post("/x%2Fy?a=;b", "{}"))
	for _, want := range []string{"/base" + chatPath + "?a=b", "/base/x%2Fy?a=;b"} {
		if uri := <-got; uri != want {
			t.Errorf("got %s, want %s", uri, want)
		}
	}
}

func TestHeadPassesWithItsLength(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "1234") })
	for _, path := range []string{chatPath, "/health"} {
		res, err := r.client.Head(r.server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.ContentLength != 1234 {
			t.Errorf("%s: length: got %d, want 1234", path, res.ContentLength)
		}
	}
}

func TestChunkedMultipartPassesByteForByte(t *testing.T) {
	got := make(chan []byte, 1)
	r := newRig(t, func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- b
	})
	var form bytes.Buffer
	m := multipart.NewWriter(&form)
	part, _ := m.CreateFormFile("file", "a.wav")
	part.Write(bytes.Repeat([]byte{0, 1, 0xff, '\r', '\n'}, 200_000))
	m.Close()
	want := bytes.Clone(form.Bytes())
	res, err := r.client.Post(r.server.URL+"/v1/audio/transcriptions", m.FormDataContentType(), struct{ io.Reader }{&form})
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if b := <-got; !bytes.Equal(b, want) {
		t.Errorf("upstream: got %d bytes, want the same %d", len(b), len(want))
	}
}

func TestUpgradePassesBothWays(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" || r.Header.Get("Connection") != "Upgrade" {
			http.Error(w, "no upgrade", 400)
			return
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n")
		line, _ := rw.ReadString('\n')
		io.WriteString(c, "echo "+line)
	})
	// A client may send before it has its 101.
	for _, early := range []string{"", "hel", "hello\n"} {
		c, err := net.Dial("tcp", r.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"+early)
		br := bufio.NewReader(c)
		res, err := http.ReadResponse(br, nil)
		if err != nil || res.StatusCode != 101 || res.Header.Get("Sec-Websocket-Accept") != "x" {
			t.Fatalf("upgrade: got %+v, %v; want 101", res, err)
		}
		io.WriteString(c, strings.TrimPrefix("hello\n", early))
		if line, err := br.ReadString('\n'); line != "echo hello\n" {
			t.Errorf("echo with %q sent early: got %q, %v", early, line, err)
		}
		c.Close()
		r.idle()
	}
}

func TestTrailersPass(t *testing.T) {
	for _, path := range []string{chatPath, "/other"} {
		r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Announced")
			io.WriteString(w, "body")
			w.(http.Flusher).Flush()
			w.Header().Set("X-Announced", "a")
			if path != chatPath {
				w.Header().Set(http.TrailerPrefix+"X-Late", "b")
			}
		})
		res := r.post(path, "{}")
		text(t, res)
		if got := res.Trailer.Get("X-Announced"); got != "a" {
			t.Errorf("%s: trailer: got %q, want a", path, got)
		}
		if got := res.Trailer.Get("X-Late"); path != chatPath && got != "b" {
			t.Errorf("%s: late trailer: got %q, want b", path, got)
		}
	}
}

func TestInterimResponsesPass(t *testing.T) {
	for _, path := range []string{chatPath, "/other"} {
		r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</a>")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
			io.WriteString(w, "done")
		})
		var codes []int
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				if h.Get("Link") == "</a>" {
					codes = append(codes, code)
				}
				return nil
			},
		})
		req, _ := http.NewRequestWithContext(ctx, "POST", r.server.URL+path, strings.NewReader("{}"))
		res, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if got := text(t, res); got != "done" || fmt.Sprint(codes) != "[103]" || res.Header.Get("Link") != "" {
			t.Errorf("%s: got %q after %v, link %q; want done after 103", path, got, codes, res.Header.Get("Link"))
		}
		res.Body.Close()
	}
}

// TestAnswerMayBeginBeforeTheRequestsEndWasSeen has an upstream that answers as
// soon as it has the body, which is often before the transport has seen its end.
func TestAnswerMayBeginBeforeTheRequestsEndWasSeen(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.CopyN(io.Discard, r.Body, r.ContentLength)
		w.Header().Set("Content-Type", "text/event-stream")
		for range 3 {
			io.WriteString(w, chunk("x"))
			w.(http.Flusher).Flush()
		}
	}, withConfig(func(c *Config) { c.ScanBytes = 100 }))
	body := strings.Repeat("x", 2000)
	for range 300 {
		for _, path := range []string{"/other", chatPath} {
			if got := text(t, r.post(path, body)); got != strings.Repeat(chunk("x"), 3) {
				t.Fatalf("%s: got %q", path, got)
			}
		}
	}
}

func TestAnswerBeforeTheRequestsEndPasses(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		br := bufio.NewReader(r.Body)
		for {
			line, err := br.ReadString('\n')
			if err != nil {
				return
			}
			io.WriteString(w, "echo "+line)
			w.(http.Flusher).Flush()
		}
	})
	pr, pw := io.Pipe()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "POST", r.server.URL+"/duplex", pr)
	go io.WriteString(pw, "a\n") // ends when the proxy has read it
	res, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	br := bufio.NewReader(res.Body)
	for _, next := range []string{"b\n", ""} {
		if line, err := br.ReadString('\n'); err != nil || !strings.HasPrefix(line, "echo ") {
			t.Fatalf("got %q, %v", line, err)
		}
		if next != "" {
			io.WriteString(pw, next)
		}
	}
	pw.Close()
	text(t, res)
}
