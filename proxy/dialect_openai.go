package proxy

// chat is OpenAI's /v1/chat/completions.
type chat struct{}

// completions is OpenAI's /v1/completions.
type completions struct{}

// typed knows the error of older vLLM: {"object":"error","message":…}.
func (chat) typed(name []byte) meaning        { return openaiTyped(name) }
func (completions) typed(name []byte) meaning { return openaiTyped(name) }

func openaiTyped(name []byte) meaning {
	if string(name) == "error" {
		return meansFailure
	}
	return 0
}

func (chat) path(p string) bool        { return p == "/v1/chat/completions" }
func (completions) path(p string) bool { return p == "/v1/completions" }

const (
	openaiDelta = nodeOwn + iota
	openaiUsage
	openaiPromptDetails
)

// request covers both: a prompt in a chat body, or messages in a completion's,
// is the upstream's to refuse.
func (chat) request(parent node, key []byte) node { return openaiRequest(parent, key) }

func (completions) request(parent node, key []byte) node { return openaiRequest(parent, key) }

func openaiRequest(parent node, key []byte) node {
	switch parent {
	case nodeRoot:
		switch string(key) {
		case "model":
			return nodeModel
		case "stream":
			return nodeStream
		case "max_tokens":
			return nodeMaxTokens
		case "max_completion_tokens":
			return nodeMaxCompletionTokens
		case "n":
			return nodeN
		case "best_of":
			return nodeBestOf
		case "stream_options":
			return nodeStreamOptions
		case "messages":
			return nodeText + slotMessages
		case "prompt", "input":
			return nodeText + slotPrompt
		case "tools", "functions":
			return nodeText + slotTools
		}
	case nodeStreamOptions:
		if string(key) == "include_usage" {
			return nodeIncludeUsage
		}
	default:
		if parent >= nodeText {
			return textChild(parent, key)
		}
	}
	return 0
}

func (chat) answer(parent node, key []byte) node {
	switch parent {
	case nodeChoice:
		switch string(key) {
		case "delta", "message":
			return openaiDelta
		case "finish_reason":
			return nodeFinish
		}
		return 0
	case openaiDelta:
		switch string(key) {
		case "content", "reasoning", "reasoning_content", "tool_calls", "text", "audio",
			"refusal", "function_call":
			return nodeContent
		case "role":
			return nodeRole
		}
		return 0
	}
	return openaiAnswer(parent, key)
}

func (completions) answer(parent node, key []byte) node {
	if parent == nodeChoice {
		switch string(key) {
		case "text", "reasoning", "reasoning_content":
			return nodeContent
		case "finish_reason":
			return nodeFinish
		}
		return 0
	}
	return openaiAnswer(parent, key)
}

// openaiAnswer is what both share.
func openaiAnswer(parent node, key []byte) node {
	switch parent {
	case nodeRoot:
		switch string(key) {
		case "choices":
			return nodeChoice
		case "usage":
			return openaiUsage
		case "error":
			return nodeError
		case "object":
			return nodeType
		}
	case openaiUsage:
		return usageNode(key, openaiPromptDetails)
	case openaiPromptDetails:
		if string(key) == "cached_tokens" {
			return nodeCachedTokens
		}
	case nodeContent:
		return nodeContent // an object with a key is content
	}
	return 0
}

// usageNode knows the numbers of a usage object, under OpenAI's older and newer
// names.
func usageNode(key []byte, details node) node {
	switch string(key) {
	case "prompt_tokens", "input_tokens":
		return nodePromptTokens
	case "completion_tokens", "output_tokens":
		return nodeOutputTokens
	case "prompt_tokens_details", "input_tokens_details":
		return details
	}
	return 0
}
