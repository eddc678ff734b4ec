package proxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// echo answers with the hash of the request's body, and how it was framed.
func echo(w http.ResponseWriter, r *http.Request) {
	h := sha256.New()
	n, err := io.Copy(h, r.Body)
	fmt.Fprintf(w, "%d %x %d %v", n, h.Sum(nil), r.ContentLength, err)
}

func TestBodiesPassByteForByteWhateverTheyHold(t *testing.T) {
	r := newRig(t, echo)
	for name, body := range map[string]string{
		"empty": "", "malformed": `{"model": nope`, "wrong types": `{"stream":"yes","max_tokens":{},"messages":7}`,
		"binary": "\x00\xff\xfe", "deep": strings.Repeat("[", 50_000), "4 KiB": strings.Repeat("x", 4096),
		"text after": `{"model":"m"} trailing`,
	} {
		want := fmt.Sprintf("%d %x %d <nil>", len(body), sha256.Sum256([]byte(body)), len(body))
		if got := text(t, r.post(chatPath, body)); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
		if rec := r.seen.record(t); rec.Outcome != OutcomeForwarded || rec.RequestBytes != int64(len(body)) {
			t.Errorf("%s: got %+v", name, rec)
		}
	}
}

func TestChunkedBodyPasses(t *testing.T) {
	r := newRig(t, echo)
	body := strings.Repeat(`{"a":"b"}`, 10_000)
	res, err := r.client.Post(r.server.URL+chatPath, "application/json", struct{ io.Reader }{strings.NewReader(body)})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if got, want := text(t, res), fmt.Sprintf("%d %x", len(body), sha256.Sum256([]byte(body))); !strings.HasPrefix(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestBodyOf64MiBPassesScanned(t *testing.T) {
	asked := make(chan Request, 1)
	r := newRig(t, echo, withGate(gateFunc(func(_ context.Context, r Request) Verdict {
		asked <- r
		return Verdict{Forward: true}
	})))
	prompt := bytes.Repeat([]byte("x"), 64<<20-64)
	body := append(append([]byte(`{"prompt":"`), prompt...), `","max_tokens":5}`...)
	res, err := r.client.Post(r.server.URL+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if got, want := text(t, res), fmt.Sprintf("%d %x %d <nil>", len(body), sha256.Sum256(body), len(body)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := <-asked; got.MaxTokens != 5 || got.PromptBytes != len(prompt) {
		t.Errorf("gate: got %+v, want max_tokens 5 and %d bytes", got, len(prompt))
	}
}

func TestBodyAboveScanBytesPassesAsAStream(t *testing.T) {
	asked := make(chan Request, 1)
	r := newRig(t, echo, withConfig(func(c *Config) { c.ScanBytes = 10_000 }),
		withGate(gateFunc(func(_ context.Context, r Request) Verdict {
			asked <- r
			return Verdict{Forward: true}
		})))
	body := `{"model":"m","prompt":"` + strings.Repeat("x", 200_000) + `","max_tokens":5}`
	if got, want := text(t, r.post("/v1/completions", body)), fmt.Sprintf("%d %x %d <nil>", len(body), sha256.Sum256([]byte(body)), len(body)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := <-asked; got.Model != "m" || got.MaxTokens != 0 {
		t.Errorf("gate: got %+v, want the model, and no limit from beyond", got)
	}
}

func TestBodyAboveMaxBodyBytesIs413(t *testing.T) {
	r := newRig(t, func(http.ResponseWriter, *http.Request) { t.Error("upstream: got a refused request") },
		withConfig(func(c *Config) { c.MaxBodyBytes = 1000 }))
	for _, reader := range []io.Reader{strings.NewReader(strings.Repeat("x", 1001)), struct{ io.Reader }{strings.NewReader(strings.Repeat("x", 1001))}} {
		res, err := r.client.Post(r.server.URL+chatPath, "application/json", reader)
		if err != nil {
			t.Fatal(err)
		}
		if body := text(t, res); res.StatusCode != 413 || !strings.Contains(body, `"message":"lull: request body above proxy.max_body_bytes"`) || !strings.Contains(body, `"code":"lull_request_too_large"`) {
			t.Errorf("got %d %s", res.StatusCode, body)
		}
		res.Body.Close()
		if rec := r.seen.record(t); rec.Outcome != OutcomeRequestUnreadable || rec.Admission != "" {
			t.Errorf("record: got %+v, want request_unreadable", rec)
		}
	}
}

// TestChunkedBodyAboveMaxBodyBytesIs413WhileItIsSentOn: what is beyond the scan is
// never at hand as a whole.
func TestChunkedBodyAboveMaxBodyBytesIs413WhileItIsSentOn(t *testing.T) {
	const most = 4000
	for n, want := range map[int]int{most - 1: 200, most: 200, most + 1: 413, 64 * most: 413} {
		r := newRig(t, func(_ http.ResponseWriter, r *http.Request) {
			got, err := io.Copy(io.Discard, r.Body)
			if got > most || (err == nil) != (want == 200 && got == int64(n)) {
				t.Errorf("%d bytes: the upstream got %d and %v, want all of them or at most %d and an error", n, got, err, most)
			}
		}, withConfig(func(c *Config) { c.ScanBytes, c.MaxBodyBytes = 1000, most }))
		res, err := r.client.Post(r.server.URL+chatPath, "application/json", struct{ io.Reader }{strings.NewReader(strings.Repeat("x", n))})
		if err != nil {
			t.Fatal(err)
		}
		body := text(t, res)
		res.Body.Close()
		if res.StatusCode != want || want == 413 && !strings.Contains(body, `"message":"lull: request body above proxy.max_body_bytes"`) {
			t.Errorf("%d bytes: got %d %s, want %d", n, res.StatusCode, body, want)
		}
		outcome := OutcomeForwarded
		if want == 413 {
			outcome = OutcomeRequestUnreadable
		}
		if rec := r.seen.record(t); rec.Outcome != outcome {
			t.Errorf("%d bytes: record %+v, want %s", n, rec, outcome)
		}
	}
}

func TestBodyWithBrokenChunksIs400(t *testing.T) {
	r := newRig(t, func(http.ResponseWriter, *http.Request) { t.Error("upstream: got a broken request") })
	c, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n", chatPath)
	b, _ := io.ReadAll(c)
	if got := string(b); !strings.HasPrefix(got, "HTTP/1.1 400 ") || !strings.Contains(got, `"code":"lull_request_unreadable"`) || !strings.Contains(got, "lull: request body: ") {
		t.Errorf("got %s, want 400 with its code", got)
	}
	if rec := r.seen.record(t); rec.Outcome != OutcomeRequestUnreadable {
		t.Errorf("record: got %+v", rec)
	}
}
