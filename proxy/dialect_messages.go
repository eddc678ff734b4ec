package proxy

import "net/http"

// messages is Anthropic's /v1/messages. Gated, timed and counted; its finer
// events are not told apart.
type messages struct{}

func (messages) path(p string) bool { return p == "/v1/messages" }

const (
	messagesDelta = nodeOwn + iota
	messagesMessage
	messagesUsage
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
		case "content":
			return messagesBlock // without streaming: a list of blocks
		}
	case messagesDelta, messagesBlock:
		switch string(key) {
		case "text", "thinking", "partial_json", "input":
			return nodeContent
		}
	case messagesMessage:
		if string(key) == "usage" {
			return messagesUsage
		}
	case messagesUsage:
		return usageNode(key, 0)
	case nodeContent:
		return nodeContent
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
