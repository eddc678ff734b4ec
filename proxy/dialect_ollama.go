package proxy

// ollama is Ollama's own /api/generate and /api/chat: a JSON document a line,
// the last one with done true and the counts. An error is a line of its own.
// (https://github.com/ollama/ollama/blob/main/docs/api.md)
type ollama struct{ untyped }

func (ollama) path(p string) bool { return p == "/api/generate" || p == "/api/chat" }

const (
	ollamaOptions = nodeOwn + iota
	ollamaMessage
)

func (ollama) request(parent node, key []byte) node {
	switch {
	case parent == nodeRoot:
		switch string(key) {
		case "model":
			return nodeModel
		case "stream":
			return nodeStream
		case "options":
			return ollamaOptions
		case "messages":
			return nodeText + slotMessages
		case "prompt":
			return nodeText + slotPrompt
		case "system", "suffix": // a suffix goes without a system prompt
			return nodeText + slotSystem
		case "tools":
			return nodeText + slotTools
		case "images":
			return nodeMedia + slotPrompt*mediaKinds + mediaImage
		}
	case parent == ollamaOptions:
		if string(key) == "num_predict" {
			return nodeMaxTokens
		}
	case parent >= nodeText:
		return textChild(parent, key)
	}
	return 0
}

func (ollama) answer(parent node, key []byte) node {
	switch parent {
	case nodeRoot:
		switch string(key) {
		case "response", "thinking":
			return nodeContent
		case "message":
			return ollamaMessage
		case "done":
			return nodeDone
		case "error":
			return nodeError
		case "prompt_eval_count":
			return nodePromptTokens
		case "eval_count":
			return nodeOutputTokens
		}
	case ollamaMessage:
		switch string(key) {
		case "content", "thinking", "tool_calls":
			return nodeContent
		}
	case nodeContent:
		return nodeContent
	}
	return 0
}
