package proxy

// llamacpp is llama.cpp's own /completion and /infill: events with content and
// stop, running token counts in each, no [DONE].
// (https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md)
type llamacpp struct{ untyped }

func (llamacpp) path(p string) bool {
	return p == "/completion" || p == "/completions" || p == "/infill"
}

const llamacppTimings = nodeOwn

func (llamacpp) request(parent node, key []byte) node {
	switch {
	case parent == nodeRoot:
		switch string(key) {
		case "model":
			return nodeModel
		case "stream":
			return nodeStream
		case "max_tokens":
			return nodeMaxTokens
		case "n_predict":
			return nodeMaxCompletionTokens
		case "n":
			return nodeN
		case "prompt":
			return nodeText + slotPrompt
		case "input_prefix":
			return nodeText + slotMessages
		case "input_suffix":
			return nodeText + slotSystem
		case "input_extra":
			return nodeText + slotTools
		}
	case parent >= nodeText:
		return textChild(parent, key)
	}
	return 0
}

func (llamacpp) answer(parent node, key []byte) node {
	switch parent {
	case nodeRoot:
		switch string(key) {
		case "content":
			return nodeContent
		case "stop":
			return nodeDone
		case "error":
			return nodeError
		case "tokens_evaluated":
			return nodePromptTokens
		case "tokens_predicted":
			return nodeOutputTokens
		case "timings":
			return llamacppTimings
		}
	case llamacppTimings:
		if string(key) == "cache_n" {
			return nodeCachedTokens
		}
	}
	return 0
}
