package proxy

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
