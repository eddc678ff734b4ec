package emulator

import (
	"encoding/json"
	"unicode"
)

// words counts the whitespace-separated words of the text, as strings.Fields
// would, without making them.
func words(text string) int {
	n, inWord := 0, false
	for _, r := range text {
		space := unicode.IsSpace(r)
		if !space && !inWord {
			n++
		}
		inWord = !space
	}
	return n
}

// promptTokens counts the tokens of the body's prompt.
func (b *body) promptTokens(chat bool) (int, *apiError) {
	if !chat {
		return completionTokens(b.Prompt)
	}
	if len(b.Messages) == 0 {
		return 0, badRequest("messages", "messages: want at least one message")
	}
	total := 0
	for i, m := range b.Messages {
		n, ok := contentTokens(m.Content)
		if !ok {
			return 0, badRequest("messages", "messages[%d].content: want a string, a list of parts, or null", i)
		}
		total += n
	}
	if total == 0 {
		return 0, badRequest("messages", "messages: want at least one word of content")
	}
	return total, nil
}

// contentTokens counts a message's content: text, or a list of parts of which
// those with a text count.
func contentTokens(raw json.RawMessage) (int, bool) {
	var text string
	if len(raw) == 0 || json.Unmarshal(raw, &text) == nil {
		return words(text), true
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return 0, false
	}
	total := 0
	for _, p := range parts {
		total += words(p.Text)
	}
	return total, true
}

// completionTokens counts a prompt: a text, a list with one text, or a list of
// token ids.
func completionTokens(raw json.RawMessage) (int, *apiError) {
	var (
		text  string
		texts []string
		ids   []int64
		n     int
	)
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return 0, badRequest("prompt", "prompt: field required")
	case json.Unmarshal(raw, &text) == nil:
		n = words(text)
	case json.Unmarshal(raw, &texts) == nil && len(texts) > 1:
		return 0, badRequest("prompt", "prompt: the emulator takes one prompt a request, got %d", len(texts))
	case json.Unmarshal(raw, &texts) == nil && len(texts) == 1:
		n = words(texts[0])
	case json.Unmarshal(raw, &ids) == nil:
		n = len(ids)
	default:
		return 0, badRequest("prompt", "prompt: want a string, a list with one string, or a list of token ids")
	}
	if n == 0 {
		return 0, badRequest("prompt", "The decoder prompt cannot be empty")
	}
	return n, nil
}
