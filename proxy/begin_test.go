package proxy

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestNothingButContentStopsTTFT sends what servers send before the first token,
// and wants TTFT to end only after the client has all of it.
func TestNothingButContentStopsTTFT(t *testing.T) {
	for name, before := range map[string][]string{
		"heartbeats":    {":\n\n", ":\n\n", ": ping\r\n\r\n"},
		"role":          {roleChunk},
		"empty content": {roleChunk, chunk(""), chunk("")},
		"null content":  {line(`{"choices":[{"delta":{"role":"assistant","content":null,"tool_calls":[]}}]}`)},
		"usage":         {usageChunk},
		"other fields":  {"event: ping\nid: 1\nretry: 100\n\n"},
		"empty data":    {"data:\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			rec, _, had := inSteps(t, chatPath, `{"stream":true}`, sseMedia, slices.Concat(before, []string{chunk("a"), doneChunk}))
			if last := had[len(before)-1]; rec.FirstContent.Before(last) || !rec.FirstByte.Before(rec.FirstContent) || rec.Contents != 1 {
				t.Errorf("first content at %v (first byte %v), want it after %v", rec.FirstContent, rec.FirstByte, last)
			}
		})
	}
}

func TestReasoningStopsTTFT(t *testing.T) {
	var all []string
	for range 50 {
		all = append(all, line(`{"choices":[{"delta":{"reasoning_content":"hm"}}]}`))
	}
	rec, told, had := inSteps(t, chatPath, `{"stream":true}`, sseMedia, append(all, chunk("a"), doneChunk))
	if rec.Contents != 51 || len(told.content) != 51 || rec.FirstContent.After(had[1]) {
		t.Errorf("got %d contents, the first at %v; want 51, from the first reasoning on", rec.Contents, rec.FirstContent)
	}
}

// TestStreamIsKnownByItsAnswersMediaType: what the request asks for does not say
// what comes.
func TestStreamIsKnownByItsAnswersMediaType(t *testing.T) {
	for _, c := range []struct {
		request, media, answer string
		stream                 bool
	}{
		{`{}`, "Text/Event-Stream; charset=UTF-8", chunk("a") + doneChunk, true},
		{`{"stream":true}`, "application/json", `{"choices":[{"message":{"content":"a"}}]}`, false},
		{`{"stream":true}`, "video/mp4", "x", false},
	} {
		r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", c.media)
			io.WriteString(w, c.answer)
		})
		res := r.post(chatPath, c.request)
		if got := text(t, res); got != c.answer || res.Header.Get("Content-Type") != c.media {
			t.Errorf("%s: got %q as %s", c.media, got, res.Header.Get("Content-Type"))
		}
		if rec := r.seen.record(t); rec.Stream != c.stream || rec.Outcome != OutcomeForwarded {
			t.Errorf("%s: got stream %v, %s; want %v", c.media, rec.Stream, rec.Outcome, c.stream)
		}
	}
}

func TestThousandEventsWithAnyLineEndAreCounted(t *testing.T) {
	for _, end := range []string{"\n", "\r\n", "\r"} {
		all := strings.ReplaceAll(strings.Repeat(chunk("a"), 1000)+usageChunk+doneChunk, "\n", end)
		r := newRig(t, stream(all))
		if got := text(t, r.post(chatPath, `{"stream":true}`)); got != all {
			t.Errorf("lines ending with %q: got %d bytes, want %d", end, len(got), len(all))
		}
		rec := r.seen.record(t)
		if rec.Contents != 1000 || rec.OutputTokens != 3 || !rec.Terminated || r.proxy.Stats().Opaque != 0 {
			t.Errorf("lines ending with %q: got %+v, want 1000 contents, usage and an end", end, rec)
		}
	}
}

// TestHoldingIsNotTheUpstreamsTime holds a request for longer than any limit on
// the upstream.
func TestHoldingIsNotTheUpstreamsTime(t *testing.T) {
	t.Parallel()
	const limit = 2 * time.Second
	r := newRig(t, stream(chunk("a"), doneChunk),
		withConfig(func(c *Config) { c.IdleLimit, c.FirstByteLimit = limit, limit }),
		withGate(holds(limit*5/4)))
	if got := text(t, r.post(chatPath, `{}`)); got != chunk("a")+doneChunk {
		t.Errorf("got %q, want the answer", got)
	}
	if rec := r.seen.record(t); rec.Outcome != OutcomeHeldForwarded || rec.Held < limit {
		t.Errorf("got %s after %v, want held_forwarded", rec.Outcome, rec.Held)
	}
}

// TestLongPrefillIsNotIdle has an upstream whose header takes longer than the
// idle limit, as an answer without streaming does.
func TestLongPrefillIsNotIdle(t *testing.T) {
	const limit = 50 * time.Millisecond
	bothPaths(t, func(t *testing.T, path string) {
		r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(3 * limit) // the engine works
			io.WriteString(w, "{}")
		}, withConfig(func(c *Config) { c.IdleLimit = limit }))
		if res := r.post(path, `{}`); res.StatusCode != 200 || text(t, res) != "{}" {
			t.Errorf("got %d, want the late answer", res.StatusCode)
		}
	})
}
