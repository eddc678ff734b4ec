package emulator

import (
	"strings"
	"testing"
)

func TestErrorsAreAsVLLMTellsThem(t *testing.T) {
	s := startServer(t, quick())
	long := prompt(512)
	for _, tc := range []struct {
		name, path, body string
		status           int
		typ, param, want string
	}{
		{"malformed JSON", "chat/completions", `{"messages":`, 400, "BadRequestError", "", "the body is no valid request: unexpected end of JSON input"},
		{"wrong type", "completions", `{"prompt":"a","stream":"yes"}`, 400, "BadRequestError", "", "the body is no valid request: json: cannot unmarshal string"},
		{"unknown model", "chat/completions", `{"model":"gpt-9","messages":[]}`, 404, "NotFoundError", "model", "The model `gpt-9` does not exist."},
		{"several answers", "completions", `{"prompt":"a","n":2}`, 400, "BadRequestError", "n", "n must be 1: the emulator gives one answer a request, got 2"},
		{"no messages", "chat/completions", `{}`, 400, "BadRequestError", "messages", "messages: want at least one message"},
		{"no words", "chat/completions", `{"messages":[{"content":" "},{"content":null}]}`, 400, "BadRequestError", "messages", "messages: want at least one word of content"},
		{"odd content", "chat/completions", `{"messages":[{"content":7}]}`, 400, "BadRequestError", "messages", "messages[0].content: want a string, a list of parts, or null"},
		{"no prompt", "completions", `{}`, 400, "BadRequestError", "prompt", "prompt: field required"},
		{"empty prompt", "completions", `{"prompt":""}`, 400, "BadRequestError", "prompt", "The decoder prompt cannot be empty"},
		{"odd prompt", "completions", `{"prompt":{}}`, 400, "BadRequestError", "prompt", "prompt: want a string, a list with one string, or a list of token ids"},
		{"two prompts", "completions", `{"prompt":["a","b"]}`, 400, "BadRequestError", "prompt", "prompt: the emulator takes one prompt a request, got 2"},
		{"too long a prompt", "completions", `{"prompt":"` + long + `"}`, 400, "BadRequestError", "input_tokens", "This model's maximum context length is 512 tokens. However, your request has 512 input tokens."},
		{"too high a limit", "chat/completions", `{"messages":[{"content":"a b"}],"max_completion_tokens":511}`, 400, "BadRequestError", "max_completion_tokens", "is too large: 511. This model's maximum context length is 512 tokens and your request has 2 input tokens (511 > 512 - 2)."},
		{"no limit", "completions", `{"prompt":"a","max_tokens":0}`, 400, "BadRequestError", "max_tokens", "max_tokens must be at least 1, got 0."},
		{"least above most", "completions", `{"prompt":"a","max_tokens":3,"min_tokens":4}`, 400, "BadRequestError", "min_tokens", "min_tokens must be less than or equal to max_tokens=3, got 4."},
		{"negative least", "completions", `{"prompt":"a","min_tokens":-1}`, 400, "BadRequestError", "min_tokens", "min_tokens must be at least 0, got -1."},
		{"negative length", "completions", `{"prompt":"a","emulate":{"output_tokens":-1}}`, 400, "BadRequestError", "emulate.output_tokens", "emulate.output_tokens must be at least 0, got -1."},
	} {
		status, body := call(t, s, "POST", "/v1/"+tc.path, tc.body)
		e := parse(t, body).Error
		if status != tc.status || e == nil || e.Code != tc.status || e.Type != tc.typ || !strings.Contains(e.Message, tc.want) {
			t.Errorf("%s: got %d %s, want %d %s %q", tc.name, status, body, tc.status, tc.typ, tc.want)
			continue
		}
		if param := e.Param; (param == nil) != (tc.param == "") || param != nil && *param != tc.param {
			t.Errorf("%s: param in %s, want %q", tc.name, body, tc.param)
		}
	}
}

func TestBodyBeyondTheLimitIsRefused(t *testing.T) {
	s := startServer(t, quick())
	status, body := call(t, s, "POST", "/v1/completions", `{"prompt":"`+strings.Repeat("a ", maxBody/2)+`"}`)
	if status != 413 || !strings.Contains(body, "the body is larger than 67108864 bytes") {
		t.Fatalf("got %d %s", status, body)
	}
}

func TestUnknownPathsAndMethodsAreRefused(t *testing.T) {
	s := startServer(t, quick())
	if status, body := call(t, s, "GET", "/v1/nothing", ""); status != 404 || body != `{"detail":"Not Found"}` {
		t.Errorf("unknown path: %d %s", status, body)
	}
	if status, body := call(t, s, "DELETE", "/v1/models", ""); status != 405 || body != `{"detail":"Method Not Allowed"}` {
		t.Errorf("unknown method: %d %s", status, body)
	}
}

func TestWordsAreCountedAsFields(t *testing.T) {
	for _, text := range []string{"", " ", "a", " a b ", "a\n\tb\u00a0c\u2003d", "日本 語", "a\xffb c"} {
		if got, want := words(text), len(strings.Fields(text)); got != want {
			t.Errorf("%q: got %d, want %d", text, got, want)
		}
	}
}

func TestPromptTokensAreTheWordsOfAllContents(t *testing.T) {
	s := startServer(t, quick())
	_, body := call(t, s, "POST", "/v1/chat/completions", `{"messages":[{"role":"system","content":"be  brief"},
		{"role":"user","content":[{"type":"text","text":"one two three"},{"type":"image_url"}]},{"role":"assistant","content":null}],"max_tokens":1}`)
	if c := parse(t, body); c.Usage == nil || c.Usage.Prompt != 5 {
		t.Fatalf("got %s, want 5 prompt tokens", body)
	}
}

func FuzzUnderstandNeverPanicsOrLetsThroughTooMuch(f *testing.F) {
	f.Add(`{"messages":[{"content":"a b"}],"max_tokens":3}`, true)
	f.Add(`{"prompt":[1,2],"min_tokens":2}`, false)
	cfg := quick()
	f.Fuzz(func(t *testing.T, text string, chat bool) {
		b, apiErr := decode([]byte(text))
		if apiErr != nil {
			return
		}
		a, apiErr := cfg.understand(b, chat)
		if apiErr != nil {
			return
		}
		r := a.request
		if r.PromptTokens < 1 || r.PromptTokens >= cfg.MaxModelLen || r.MaxTokens < 0 || r.PromptTokens+r.MaxTokens > cfg.MaxModelLen {
			t.Fatalf("%s: let through %+v", text, r)
		}
	})
}
