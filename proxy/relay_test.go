package proxy

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestModelOfAPathIsTheRequests(t *testing.T) {
	asked := make(chan Request, 1)
	r := newRig(t, echo, withGate(gateFunc(func(_ context.Context, r Request) Verdict {
		asked <- r
		return Verdict{Forward: true}
	})))
	for path, want := range map[string]string{
		"/v2/models/llm/infer": "llm", "/v2/models/a%20b/versions/3/generate": "a b", "/v2/models/" + strings.Repeat("x", 200) + "/infer": strings.Repeat("x", 128),
	} {
		text(t, r.post(path, `{"model":"another","text_input":"hi"}`))
		if got, rec := <-asked, r.seen.record(t); got.Model != want || rec.Model != want {
			t.Errorf("%s: got %q at the gate and %q in the record, want %q", path, got.Model, rec.Model, want)
		}
	}
}

func TestStreamIsRelayedByteForByteAndCounted(t *testing.T) {
	parts := []string{": ping\n\n", roleChunk, chunk("a"), chunk("渐")[:60], chunk("渐")[60:], chunk("c"), usageChunk, doneChunk}
	r := newRig(t, stream(parts...))
	if got, want := text(t, r.post(chatPath, `{"model":"m","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"hello"}]}`)), strings.Join(parts, ""); got != want {
		t.Errorf("answer: got %q, want %q", got, want)
	}
	rec := r.seen.record(t)
	if rec.Outcome != OutcomeForwarded || rec.Admission != OutcomeForwarded || rec.Status != 200 || !rec.Stream || rec.Failed() || rec.Err != nil {
		t.Errorf("ending: got %+v, want a whole stream", rec)
	}
	if rec.Model != "m" || rec.MaxTokens != 9 || rec.PromptBytes != 5 || rec.Engine != "fake" || rec.Path != chatPath {
		t.Errorf("request: got %+v", rec)
	}
	if rec.Contents != 3 || rec.Events != 3 || rec.OutputTokens != 3 || rec.PromptTokens != 7 || rec.CachedTokens != 2 || rec.TokenSource != TokensFromUsage || !rec.Terminated {
		t.Errorf("counts: got %+v, want 3 contents and usage 7 + 3 (2 cached)", rec)
	}
	if rec.ResponseBytes != int64(len(strings.Join(parts, ""))) {
		t.Errorf("bytes: got %d, want %d", rec.ResponseBytes, len(strings.Join(parts, "")))
	}
	inOrder := []time.Time{rec.Arrived, rec.Forwarded, rec.Headers, rec.FirstByte, rec.FirstContent, rec.LastContent, rec.End}
	for i := 1; i < len(inOrder); i++ {
		if inOrder[i].Before(inOrder[i-1]) || inOrder[i].IsZero() {
			t.Errorf("time %d: got %v after %v, want them in order", i, inOrder[i], inOrder[i-1])
		}
	}
	r.idle()
	r.seen.noMore(t)
}

func TestRandomBytesInAStreamPassUnchanged(t *testing.T) {
	src := rand.New(rand.NewPCG(1, 2))
	body := make([]byte, 300_000)
	for i := range body {
		body[i] = "\r\n:data {}\"\\\xff\x00e[]"[src.IntN(17)]
	}
	var parts []string
	for rest := body; len(rest) > 0; {
		n := min(len(rest), 1+src.IntN(5000))
		parts, rest = append(parts, string(rest[:n])), rest[n:]
	}
	r := newRig(t, stream(parts...))
	if got := text(t, r.post(chatPath, `{}`)); got != string(body) {
		t.Errorf("answer of %d bytes differs from the upstream's %d", len(got), len(body))
	}
	if rec := r.seen.record(t); rec.Outcome != OutcomeForwarded {
		t.Errorf("outcome: got %s, want forwarded", rec.Outcome)
	}
}

// TestEachEventArrivesBeforeTheNextIsSent has an upstream that sends an event
// only when the client has the one before: anything held back would hang it.
func TestEachEventArrivesBeforeTheNextIsSent(t *testing.T) {
	got := make(chan struct{})
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream;charset=utf-8")
		for range 20 {
			io.WriteString(w, chunk("x"))
			w.(http.Flusher).Flush()
			select {
			case <-got:
			case <-time.After(wait):
				return
			}
		}
	})
	res := r.post(chatPath, `{"stream":true}`)
	buf := make([]byte, len(chunk("x")))
	for i := range 20 {
		if _, err := io.ReadFull(res.Body, buf); err != nil {
			t.Fatalf("event %d: %v", i, err)
		}
		got <- struct{}{}
	}
	if rec := r.seen.record(t); rec.Contents != 20 {
		t.Errorf("contents: got %d, want 20", rec.Contents)
	}
}

func TestHeadersArriveBeforeALateBody(t *testing.T) {
	release := make(chan struct{})
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		<-release
		io.WriteString(w, chunk("x"))
	})
	res := r.post(chatPath, `{"stream":true}`) // returns when the header is here
	close(release)
	if got := text(t, res); got != chunk("x") {
		t.Errorf("answer: got %q", got)
	}
}

func TestRoleOnlyChunkIsNotFirstToken(t *testing.T) {
	sawRole := make(chan struct{})
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, ":\n\n"+roleChunk)
		w.(http.Flusher).Flush()
		<-sawRole
		io.WriteString(w, chunk("x"))
	})
	res := r.post(chatPath, `{"stream":true}`)
	if _, err := io.ReadFull(res.Body, make([]byte, len(":\n\n"+roleChunk))); err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	close(sawRole)
	text(t, res)
	rec := r.seen.record(t)
	ttft, ok := rec.TTFT()
	if !ok || rec.FirstContent.Before(at) || !rec.FirstByte.Before(rec.FirstContent) || ttft != rec.FirstContent.Sub(rec.Arrived) {
		t.Errorf("first content: got %v (first byte %v), want after the role chunk was seen at %v, and after the first byte", rec.FirstContent, rec.FirstByte, at)
	}
}

func TestEmptyTextIsTimedAsAnEvent(t *testing.T) {
	r := newRig(t, stream(roleChunk, chunk(""), chunk(""), doneChunk))
	text(t, r.post(chatPath, `{"stream":true}`))
	rec := r.seen.record(t)
	if rec.Contents != 0 || rec.Events != 2 || rec.FirstEvent.IsZero() || !rec.FirstContent.IsZero() || len(r.seen.events) != 2 {
		t.Errorf("got %+v, want 2 events and no content", rec)
	}
	if _, ok := rec.TTFT(); ok {
		t.Error("TTFT: got one, want none without content")
	}
}

func TestContinuousUsageCountsEachTokenOnce(t *testing.T) {
	var parts []string
	for n := 1; n <= 4; n++ {
		parts = append(parts, fmt.Sprintf(`data: {"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":5,"completion_tokens":%d}}`+"\n\n", 2*n))
	}
	r := newRig(t, stream(parts...))
	text(t, r.post(chatPath, `{"stream":true}`))
	rec := r.seen.record(t)
	if rec.OutputTokens != 8 || rec.PromptTokens != 5 || fmt.Sprint(r.seen.tokens) != "[2 2 2 2]" {
		t.Errorf("got %d + %d tokens, told %v; want 5 + 8, told 2 each", rec.PromptTokens, rec.OutputTokens, r.seen.tokens)
	}
}

func TestErrorInsideAStreamIsAFailureWithoutTTFT(t *testing.T) {
	body := []string{`data: {"error":{"message":"out of memory","code":500}}` + "\n\n", doneChunk}
	r := newRig(t, stream(body...))
	if got := text(t, r.post(chatPath, `{"stream":true}`)); got != strings.Join(body, "") {
		t.Errorf("answer: got %q, want it unchanged", got)
	}
	rec := r.seen.record(t)
	if _, ok := rec.TTFT(); ok || !rec.Failed() || rec.Outcome != OutcomeUpstreamError || rec.Status != 200 {
		t.Errorf("got %+v, want upstream_error with status 200 and no TTFT", rec)
	}
	if want := "the upstream sent an error inside its answer"; rec.Err == nil || rec.Err.Error() != want {
		t.Errorf("error: got %v, want %q", rec.Err, want)
	}
}

func TestAnswerWithoutStreamingIsCounted(t *testing.T) {
	body := `{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, body)
	})
	if got := text(t, r.post(chatPath, `{}`)); got != body {
		t.Errorf("answer: got %q", got)
	}
	rec := r.seen.record(t)
	if rec.Stream || rec.Contents != 1 || rec.OutputTokens != 2 || rec.PromptTokens != 3 || rec.TokenSource != TokensFromUsage {
		t.Errorf("got %+v, want 3 + 2 tokens", rec)
	}
	if _, ok := rec.TPOT(); ok {
		t.Error("TPOT: got one, want none without a stream")
	}
}

func TestUpstreamsOwnErrorPassesUnchanged(t *testing.T) {
	const body = `{"error":{"message":"slow down"}}` // no newline at its end
	for status, outcome := range map[int]string{429: OutcomeUpstreamRefused, 400: OutcomeUpstreamRefused, 503: OutcomeUpstreamError} {
		r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(status)
			io.WriteString(w, body)
		})
		res := r.post(chatPath, `{"stream":true}`)
		if got := text(t, res); got != body || res.StatusCode != status || res.Header.Get("Retry-After") != "7" {
			t.Errorf("%d: got %d %q", status, res.StatusCode, got)
		}
		if rec := r.seen.record(t); rec.Outcome != outcome || rec.Status != status {
			t.Errorf("%d: got outcome %s status %d, want %s", status, rec.Outcome, rec.Status, outcome)
		}
	}
}

func TestCompressedAnswerPassesUnread(t *testing.T) {
	var z bytes.Buffer
	zw := gzip.NewWriter(&z)
	io.WriteString(zw, chunk("x"))
	zw.Close()
	accepted := make(chan string, 1)
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		accepted <- r.Header.Get("Accept-Encoding")
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Content-Encoding", "gzip")
		w.Write(z.Bytes())
	})
	if got := text(t, r.post(chatPath, `{}`)); got != z.String() {
		t.Error("answer: it was changed")
	}
	if got := <-accepted; got != "" {
		t.Errorf("Accept-Encoding at the upstream: got %q, want none added", got)
	}
	if rec := r.seen.record(t); rec.Contents != 0 || rec.Outcome != OutcomeForwarded || r.proxy.Stats().Opaque != 1 {
		t.Errorf("got %+v, want it forwarded and opaque", rec)
	}
}

func TestFaultInTheObserverCostsAMetricOnly(t *testing.T) {
	r := newRig(t, stream(chunk("a"), chunk("b"), doneChunk))
	r.proxy.observer = panicking{}
	want := chunk("a") + chunk("b") + doneChunk
	if got := text(t, r.post(chatPath, `{}`)); got != want {
		t.Errorf("answer: got %q, want %q", got, want)
	}
	r.idle()
	if got := r.proxy.Stats().Faults; got != 2 {
		t.Errorf("faults: got %d, want 2 (the first content, and the end)", got)
	}
}

type panicking struct{}

func (panicking) Content(string, time.Time, int) { panic("content") }
func (panicking) Done(Record)                    { panic("done") }

// endless writes an event again and again until the client is gone.
func endless(event string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, event); err != nil {
				return
			}
		}
	}
}

func TestLongStreamUsesConstantMemory(t *testing.T) {
	for name, event := range map[string]string{
		"events":   chunk("token"),
		"one line": strings.Repeat("x", 997),
		"cr only":  "data: {\"a\":1}\r\r",
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, endless(event))
			r.proxy.observer, r.proxy.events = nil, nil // the watcher keeps every time
			res := r.post(chatPath, `{"stream":true}`)
			buf := make([]byte, 1<<20)
			read := func(n int64) uint64 {
				if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.LimitReader(res.Body, n), buf); err != nil {
					t.Fatal(err)
				}
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return m.HeapAlloc
			}
			before := read(1 << 20)
			after := read(8 << 20)
			if after > before+1<<20 {
				t.Errorf("heap: got %d bytes after 8 MiB more, want about %d", after, before)
			}
		})
	}
}

func TestSlowReaderHoldsTheUpstreamBackNotMemory(t *testing.T) {
	var sent counter
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		piece := bytes.Repeat([]byte("x"), 64<<10)
		for r.Context().Err() == nil {
			n, err := w.Write(piece)
			sent.add(n)
			if err != nil {
				return
			}
		}
	})
	res := r.post(chatPath, `{}`) // and never reads
	settled := int64(-1)
	deadline := time.Now().Add(wait)
	for {
		now := sent.get()
		if now == settled && now > 0 {
			break
		}
		if now > 64<<20 || time.Now().After(deadline) {
			t.Fatalf("upstream: sent %d bytes to a client that reads none, want it to stop", now)
		}
		settled = now
		time.Sleep(200 * time.Millisecond) // nothing tells that a sender is blocked
	}
	res.Body.Close()
	if rec := r.seen.record(t); rec.Outcome != OutcomeClientGone {
		t.Errorf("outcome: got %s, want client_gone", rec.Outcome)
	}
	r.idle()
}
