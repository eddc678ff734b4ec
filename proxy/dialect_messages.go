package proxy

import "net/http"

// messages is Anthropic's /v1/messages: typed events. What is generated is in
// "delta", and in the name of a tool's block; message_delta has the usage so far.
// (https://docs.anthropic.com/en/docs/build-with-claude/streaming)
type messages struct{}

func (messages) path(p string) bool { return p == "/v1/messages" }

func (messages) typed(name []byte) meaning {
	switch string(name) {
	case "message_stop":
		return meansEnd
	case "error":
		return meansFailure
	}
	return 0
}

const (
	messagesDelta = nodeOwn + iota
	messagesMessage
	messagesUsage
	messagesFirstUsage
	messagesBlock
)

func (messages) request(parent node, key []byte) node {
	switch {
	case parent == nodeRoot:
		switch string(key) {
		case "model":
			return nodeModel
		case "stream":
			return nodeStream
		case "max_tokens":
			return nodeMaxTokens
		case "messages":
			return nodeText + slotMessages
		case "system":
			return nodeText + slotSystem
		case "tools":
			return nodeText + slotTools
		}
	case parent >= nodeText:
		return textChild(parent, key)
	}
	return 0
}

func (messages) answer(parent node, key []byte) node {
	switch parent {
	case nodeRoot:
		switch string(key) {
		case "type":
			return nodeType
		case "delta":
			return messagesDelta
		case "error":
			return nodeError
		case "message":
			return messagesMessage
		case "usage":
			return messagesUsage
		case "content", "content_block":
			return messagesBlock // without streaming: a list of blocks
		}
	case messagesDelta:
		switch string(key) {
		case "text", "thinking", "partial_json":
			return nodeContent
		}
	case messagesBlock:
		switch string(key) {
		case "text", "thinking", "name":
			return nodeContent
		}
	case messagesMessage:
		if string(key) == "usage" {
			return messagesFirstUsage
		}
	case messagesFirstUsage:
		// Its output tokens are of the beginning: no count if the stream breaks.
		if string(key) != "output_tokens" {
			return messagesUsageNode(key)
		}
	case messagesUsage:
		return messagesUsageNode(key)
	case nodeContent:
		return nodeContent
	}
	return 0
}

// messagesUsageNode: Anthropic's input_tokens leave out what was read from a
// cache or written to one.
func messagesUsageNode(key []byte) node {
	switch string(key) {
	case "input_tokens":
		return nodePromptTokens
	case "cache_read_input_tokens":
		return nodeCachedBeside
	case "cache_creation_input_tokens":
		return nodeCacheWritten
	case "output_tokens":
		return nodeOutputTokens
	}
	return 0
}

// errorShape is Anthropic's error (https://docs.anthropic.com/en/api/errors):
// its types follow from the status.
func (messages) errorShape(f refusal, requestID string) any {
	kind := "api_error"
	switch f.status {
	case http.StatusBadRequest, http.StatusRequestTimeout:
		kind = "invalid_request_error"
	case http.StatusUnauthorized:
		kind = "authentication_error"
	case http.StatusRequestEntityTooLarge:
		kind = "request_too_large"
	case http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case http.StatusServiceUnavailable:
		kind = "overloaded_error"
	case http.StatusGatewayTimeout:
		kind = "timeout_error"
	}
	type detail struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	return struct {
		Type      string `json:"type"`
		Error     detail `json:"error"`
		RequestID string `json:"request_id"`
	}{"error", detail{kind, f.message + " (" + f.code + ")"}, requestID}
}
