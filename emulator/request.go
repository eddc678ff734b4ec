package emulator

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/lull-project/lull/emulator/model"
)

// maxBody is the largest request body that is read.
const maxBody = 64 << 20

// defaultCompletionTokens is the limit of /v1/completions when the body has none.
const defaultCompletionTokens = 16

// body holds the keys of a request that the emulator knows; others are ignored.
type body struct {
	Model               string          `json:"model"`
	Messages            []message       `json:"messages"`
	Prompt              json.RawMessage `json:"prompt"`
	Stream              bool            `json:"stream"`
	StreamOptions       streamOptions   `json:"stream_options"`
	N                   *int            `json:"n"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	MinTokens           int             `json:"min_tokens"`
	IgnoreEOS           bool            `json:"ignore_eos"`
	Emulate             struct {
		OutputTokens int `json:"output_tokens"`
	} `json:"emulate"`
}

type streamOptions struct {
	IncludeUsage         bool `json:"include_usage"`
	ContinuousUsageStats bool `json:"continuous_usage_stats"`
}

type message struct {
	Content json.RawMessage `json:"content"`
}

// ask is an understood request.
type ask struct {
	chat    bool
	stream  bool
	options streamOptions
	request model.Request
}

// readBody decodes the request's body.
func readBody(w http.ResponseWriter, r *http.Request) (*body, *apiError) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, &apiError{Message: fmt.Sprintf("the body is larger than %d bytes", maxBody), Type: "RequestEntityTooLarge", Code: http.StatusRequestEntityTooLarge}
	}
	if err != nil {
		return nil, badRequest("", "the body could not be read: %v", err)
	}
	return decode(raw)
}

func decode(raw []byte) (*body, *apiError) {
	var b body
	if err := json.Unmarshal(raw, &b); err != nil {
		return nil, badRequest("", "the body is no valid request: %v", err)
	}
	return &b, nil
}

// understand checks a body against the served model.
func (c Config) understand(b *body, chat bool) (ask, *apiError) {
	a := ask{chat: chat, stream: b.Stream, options: b.StreamOptions}
	switch {
	case b.Model != "" && b.Model != c.Model:
		return a, unknownModel(b.Model)
	case b.N != nil && *b.N != 1:
		return a, badRequest("n", "n must be 1: the emulator gives one answer a request, got %d", *b.N)
	case b.MinTokens < 0:
		return a, badRequest("min_tokens", "min_tokens must be at least 0, got %d.", b.MinTokens)
	case b.Emulate.OutputTokens < 0:
		return a, badRequest("emulate.output_tokens", "emulate.output_tokens must be at least 0, got %d.", b.Emulate.OutputTokens)
	}
	prompt, apiErr := b.promptTokens(chat)
	if apiErr != nil {
		return a, apiErr
	}
	limit, apiErr := c.limit(b, chat, prompt)
	if apiErr != nil {
		return a, apiErr
	}
	a.request = model.Request{
		PromptTokens: prompt, MaxTokens: limit, MinTokens: b.MinTokens,
		OutputTokens: b.Emulate.OutputTokens, IgnoreEOS: b.IgnoreEOS,
	}
	if a.request.MinTokens > limit && limit > 0 {
		return a, badRequest("min_tokens", "min_tokens must be less than or equal to max_tokens=%d, got %d.", limit, b.MinTokens)
	}
	return a, nil
}

// limit is the request's max_tokens, 0 when only the model's length limits it.
func (c Config) limit(b *body, chat bool, prompt int) (int, *apiError) {
	param, given := "max_tokens", b.MaxTokens
	if chat && b.MaxCompletionTokens != nil {
		param, given = "max_completion_tokens", b.MaxCompletionTokens
	}
	switch {
	case prompt >= c.MaxModelLen:
		return 0, badRequest("input_tokens", "This model's maximum context length is %d tokens. However, your request has %d input tokens. Please reduce the length of the input messages.", c.MaxModelLen, prompt)
	case given == nil && chat:
		return 0, nil
	case given == nil:
		return min(defaultCompletionTokens, c.MaxModelLen-prompt), nil
	case *given < 1:
		return 0, badRequest(param, "%s must be at least 1, got %d.", param, *given)
	case *given > c.MaxModelLen-prompt:
		return 0, badRequest(param, "'max_tokens' or 'max_completion_tokens' is too large: %d. This model's maximum context length is %d tokens and your request has %d input tokens (%d > %d - %d).", *given, c.MaxModelLen, prompt, *given, c.MaxModelLen, prompt)
	}
	return *given, nil
}
