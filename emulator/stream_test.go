package emulator

import (
	"fmt"
	"strings"
	"testing"
)

func streamed(t *testing.T, s *Server, path, body string) []string {
	t.Helper()
	resp := post(t, t.Context(), s, path, body)
	if got := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || got != "text/event-stream; charset=utf-8" {
		t.Fatalf("status %d, content type %q", resp.StatusCode, got)
	}
	data, err := events(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) == 0 || data[len(data)-1] != "[DONE]" {
		t.Fatalf("the stream does not end with [DONE]: %q", data)
	}
	return data[:len(data)-1]
}

func TestChatStreamHasRoleThenOneTokenAChunk(t *testing.T) {
	s := startServer(t, quick())
	data := streamed(t, s, "/v1/chat/completions", chat(7, `,"stream":true,"emulate":{"output_tokens":3}`))
	var got []string
	for _, text := range data {
		c := parse(t, text)
		if c.Object != "chat.completion.chunk" || c.Model != "lull-emulated" || !strings.HasPrefix(c.ID, "chatcmpl-") || c.Usage != nil {
			t.Fatalf("chunk %s", text)
		}
		reason := "-"
		if r := c.Choices[0].FinishReason; r != nil {
			reason = *r
		}
		got = append(got, fmt.Sprint(c.Choices[0].Delta, " ", reason))
	}
	want := "map[content: role:assistant] -|map[content:w1 ] -|map[content:w2 ] -|map[content:w3 ] stop"
	if strings.Join(got, "|") != want {
		t.Fatalf("got %q, want %q", strings.Join(got, "|"), want)
	}
}

func TestCompletionStreamHasNoRoleAndEndsAtItsLimit(t *testing.T) {
	s := startServer(t, quick())
	data := streamed(t, s, "/v1/completions", `{"prompt":"a b c","stream":true,"max_tokens":2,"ignore_eos":true}`)
	if len(data) != 2 {
		t.Fatalf("got %d chunks, want 2: %q", len(data), data)
	}
	last := parse(t, data[1])
	if last.Object != "text_completion" || last.Choices[0].Text != "w2 " || *last.Choices[0].FinishReason != "length" {
		t.Fatalf("last chunk %s", data[1])
	}
}

func TestUsageComesInAChunkOfItsOwnWhenAskedFor(t *testing.T) {
	s := startServer(t, quick())
	data := streamed(t, s, "/v1/chat/completions", chat(7, `,"stream":true,"stream_options":{"include_usage":true},"emulate":{"output_tokens":2}`))
	last := parse(t, data[len(data)-1])
	if len(last.Choices) != 0 || last.Usage == nil || last.Usage.Prompt != 7 || last.Usage.Completion != 2 || last.Usage.Total != 9 {
		t.Fatalf("usage chunk %s", data[len(data)-1])
	}
	if c := parse(t, data[1]); c.Usage != nil {
		t.Fatalf("usage in a token's chunk, not asked for: %s", data[1])
	}
}

func TestContinuousUsageIsInEveryChunk(t *testing.T) {
	s := startServer(t, quick())
	data := streamed(t, s, "/v1/completions", `{"prompt":["a b c"],"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},"max_tokens":4,"ignore_eos":true}`)
	for i, text := range data {
		if c := parse(t, text); c.Usage == nil || c.Usage.Completion != min(i+1, 4) || c.Usage.Prompt != 3 {
			t.Fatalf("chunk %d: %s", i, text)
		}
	}
}

func TestAnswersWithoutStreamAreOneObject(t *testing.T) {
	s := startServer(t, quick())
	status, body := call(t, s, "POST", "/v1/chat/completions", chat(5, `,"emulate":{"output_tokens":3}`), "X-Request-Id", "my.id-1")
	c := parse(t, body)
	if status != 200 || c.Object != "chat.completion" || c.ID != "chatcmpl-my.id-1" || c.Choices[0].Message.Content != "w1 w2 w3 " ||
		c.Choices[0].Message.Role != "assistant" || *c.Choices[0].FinishReason != "stop" || c.Usage.Total != 8 {
		t.Fatalf("%d %s", status, body)
	}
	if resp := post(t, t.Context(), s, "/v1/chat/completions", chat(5, "")); resp.ContentLength <= 0 || resp.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("length %d, content type %q", resp.ContentLength, resp.Header.Get("Content-Type"))
	}
	status, body = call(t, s, "POST", "/v1/completions", `{"prompt":[5,6,7,8],"ignore_eos":true}`, "X-Request-Id", `a"b`)
	c = parse(t, body)
	if status != 200 || c.Choices[0].Text != wordsUpTo(16) || c.Usage.Prompt != 4 || *c.Choices[0].FinishReason != "length" || strings.Contains(c.ID, `"`) {
		t.Fatalf("%d %s", status, body)
	}
}

func wordsUpTo(n int) string {
	var b []byte
	for i := 1; i <= n; i++ {
		b = appendWord(b, i)
	}
	return string(b)
}

func TestSlowClientDelaysNobodyAndMissesNothing(t *testing.T) {
	s := startServer(t, quick())
	slow := post(t, t.Context(), s, "/v1/completions", `{"prompt":"a","stream":true,"max_tokens":400,"ignore_eos":true}`)
	if got := len(streamed(t, s, "/v1/completions", `{"prompt":"a","stream":true,"max_tokens":400,"ignore_eos":true}`)); got != 400 {
		t.Fatalf("the quick client got %d chunks, want 400", got)
	}
	data, err := events(slow.Body)
	if err != nil || len(data) != 401 {
		t.Fatalf("the slow client got %d events and %v, want 401", len(data), err)
	}
}
