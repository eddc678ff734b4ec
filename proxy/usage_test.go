package proxy

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

func injecting(c *Config) { c.InjectUsage = true }

func TestUsageIsAskedForAndItsEventStripped(t *testing.T) {
	for _, path := range []string{chatPath, "/v1/completions"} {
		for _, end := range []string{"\n", "\r\n", "\r"} {
			got := make(chan string, 1)
			in := func(s string) string { return strings.ReplaceAll(s, "\n", end) }
			r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				got <- fmt.Sprint(string(b), r.ContentLength == int64(len(b)), r.Header.Get("Accept-Encoding"))
				parts(w, nil, in(roleChunk), in(chunk("a")+usageChunk), in(doneChunk))
			}, withConfig(injecting))
			req, _ := http.NewRequest("POST", r.server.URL+path, strings.NewReader(` {"stream":true,"n":1}`))
			req.Header.Set("Accept-Encoding", "gzip")
			res, err := r.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if body := text(t, res); body != in(roleChunk+chunk("a")+doneChunk) {
				t.Errorf("%s: client got %q, want no usage", path, body)
			}
			res.Body.Close()
			if want := ` {"stream_options":{"include_usage":true},"stream":true,"n":1}` + "true"; <-got != want {
				t.Errorf("%s: upstream did not get %s", path, want)
			}
			if rec := r.seen.record(t); path == chatPath && (rec.OutputTokens != 3 || rec.TokenSource != TokensFromUsage || rec.PromptTokens != 7 || !rec.Terminated) {
				t.Errorf("%s: got %+v, want the usage", path, rec)
			}
		}
	}
}

func TestUsageIsNotAskedForAgainstTheClientsWord(t *testing.T) {
	long := `{"stream":true,"messages":"` + strings.Repeat("x", 300_000) + `"}`
	for name, c := range map[string]struct{ path, body string }{
		"no":            {chatPath, `{"stream":true,"stream_options":{"include_usage":false}}`},
		"yes":           {chatPath, `{"stream":true,"stream_options":{"include_usage":true}}`},
		"other options": {chatPath, `{"stream":true,"stream_options":{}}`},
		"no options":    {chatPath, `{"stream":true,"stream_options":null}`},
		"no stream":     {chatPath, `{"stream":false}`},
		"nothing said":  {chatPath, `{}`},
		"not JSON":      {chatPath, `{"stream":true,`},
		"too long":      {chatPath, long},
		"Messages":      {"/v1/messages", `{"stream":true}`},
		"passed":        {"/other", `{"stream":true}`},
	} {
		got := make(chan string, 1)
		r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			got <- string(b)
			parts(w, nil, chunk("a"), usageChunk, doneChunk)
		}, withConfig(injecting), withConfig(func(c *Config) { c.ScanBytes = 1000 }))
		if body := text(t, r.post(c.path, c.body)); body != chunk("a")+usageChunk+doneChunk {
			t.Errorf("%s: client got %q, want the stream unchanged", name, body)
		}
		if b := <-got; b != c.body {
			t.Errorf("%s: upstream got %q, want %q", name, b, c.body)
		}
	}
}

func TestAnswersWithoutStreamPassWhenUsageWasAskedFor(t *testing.T) {
	const body = `{"error":{"message":"stream_options: unknown field"}}`
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(400)
		io.WriteString(w, body)
	}, withConfig(injecting))
	if res := r.post(chatPath, `{"stream":true}`); text(t, res) != body || res.StatusCode != 400 || res.ContentLength != int64(len(body)) {
		t.Errorf("got %d of %d bytes, want the upstream's answer", res.StatusCode, res.ContentLength)
	}
}

// TestStrippingHoldsNoEventBack sends each part when the client has the one
// before it.
func TestStrippingHoldsNoEventBack(t *testing.T) {
	all := []string{":\n\n", ": ping\n", "\n", roleChunk, chunk("a"), chunk("b")[:60], chunk("b")[60:], line(`{"error":{"message":"m"}}`), doneChunk}
	inSteps(t, chatPath, `{"stream":true}`, sseMedia, all, withConfig(injecting))
}

// strip runs a stream through a usageStrip, cut in pieces.
func strip(body []byte, piece int) []byte {
	s, out := newUsageStrip(), []byte(nil)
	for len(body) > 0 {
		n := min(piece, len(body))
		out = append(out, s.filter(body[:n])...)
		body = body[n:]
	}
	return append(out, s.end()...)
}

func TestOnlyUsageEventsAreStripped(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"usage":              {chunk("a") + usageChunk + doneChunk, chunk("a") + doneChunk},
		"last, without end":  {chunk("a") + strings.TrimSpace(usageChunk), chunk("a")},
		"twice":              {usageChunk + usageChunk, ""},
		"with an event line": {"event: x\n" + usageChunk + doneChunk, doneChunk},
		"after a comment":    {":\n" + usageChunk + doneChunk, ":\n" + doneChunk},
		"usage with content": {line(`{"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":1}}`), line(`{"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":1}}`)},
		"null usage":         {line(`{"choices":[],"usage":null}`), line(`{"choices":[],"usage":null}`)},
		"no choices":         {line(`{"usage":{}}`), line(`{"usage":{}}`)},
		"not JSON":           {"data: {\"choices\":[],\"usage\":{}\n\n", "data: {\"choices\":[],\"usage\":{}\n\n"},
		"deeper":             {line(`{"x":{"choices":[],"usage":{}}}`), line(`{"x":{"choices":[],"usage":{}}}`)},
		"end mark alone":     {"data: [DONE]", "data: [DONE]"},
		"half an event":      {"data: {\"choi", "data: {\"choi"},
	} {
		for _, end := range []string{"\n", "\r\n", "\r"} {
			in, want := strings.ReplaceAll(c.in, "\n", end), strings.ReplaceAll(c.want, "\n", end)
			for _, piece := range []int{1, 2, 3, 7, 1 << 20} {
				if got := strip([]byte(in), piece); string(got) != want {
					t.Errorf("%s, lines ending with %q in pieces of %d: got %q, want %q", name, end, piece, got, want)
				}
			}
		}
	}
}

func TestEventTooLongForUsageIsNotHeld(t *testing.T) {
	s := newUsageStrip()
	s.filter([]byte("data: {\"x\":\""))
	if got := s.filter(bytes.Repeat([]byte("x"), 2*maxHeld)); len(got) < maxHeld {
		t.Errorf("got %d of %d bytes, want the beginning to go", len(got), 2*maxHeld)
	}
}

func FuzzStrippingChangesNothingElse(f *testing.F) {
	f.Add([]byte(":\n\n"+roleChunk+chunk("a")+usageChunk+doneChunk), uint8(3))
	f.Add([]byte("\xef\xbb\xbfdata:\r\rdata: [DONE]\r\n\r\nerror: x\n\ndata: {\"choices\":[]"), uint8(1))
	f.Add([]byte("event: x\r\ndata: {\"choices\":[],\ndata: \"usage\":{}}\r\r\n\n"), uint8(0))
	f.Fuzz(func(t *testing.T, body []byte, piece uint8) {
		whole := strip(body, len(body)+1)
		if cut := strip(body, int(piece)+1); !bytes.Equal(cut, whole) {
			t.Fatalf("in pieces of %d: got %q, whole %q", piece+1, cut, whole)
		}
		if !bytes.Contains(body, []byte("usage")) && !bytes.Contains(body, []byte(`\u`)) && !bytes.Equal(whole, body) {
			t.Fatalf("got %q, want %q unchanged", whole, body)
		}
	})
}
