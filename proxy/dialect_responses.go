package proxy

// responses is OpenAI's /v1/responses: typed events. What is generated, of any
// kind (text, reasoning, a tool's arguments, audio), is in "delta"; the last
// event says how it ended and has the usage.
// (https://platform.openai.com/docs/api-reference/responses-streaming)
type responses struct{}

func (responses) path(p string) bool { return p == "/v1/responses" }

// typed knows the endings. An incomplete answer met its limit or a filter: it is
// whole as far as the relay goes, like a finish_reason of length.
func (responses) typed(name []byte) meaning {
	switch string(name) {
	case "response.completed", "response.incomplete", "response.cancelled":
		return meansEnd
	case "response.failed":
		return meansEnd | meansFailure
	case "error":
		return meansFailure
	}
	return 0
}

const (
	responsesResponse = nodeOwn + iota
	responsesUsage
	responsesDetails
	responsesOutput
)

func (responses) request(parent node, key []byte) node {
	switch {
	case parent == nodeRoot:
		switch string(key) {
		case "model":
			return nodeModel
		case "stream":
			return nodeStream
		case "max_output_tokens":
			return nodeMaxTokens
		case "input":
			return nodeText + slotMessages
		case "instructions":
			return nodeText + slotSystem
		case "tools":
			return nodeText + slotTools
		}
	case parent >= nodeText:
		return textChild(parent, key)
	}
	return 0
}

func (responses) answer(parent node, key []byte) node {
	switch parent {
	case nodeRoot:
		switch string(key) {
		case "delta":
			return nodeContent
		case "type":
			return nodeType
		case "error":
			return nodeError
		case "response":
			return responsesResponse
		case "usage":
			return responsesUsage
		case "output":
			return responsesOutput // without streaming the answer is the root
		}
	case responsesResponse:
		switch string(key) {
		case "usage":
			return responsesUsage
		case "error":
			return nodeError
		}
	case responsesOutput:
		switch string(key) {
		case "content", "arguments", "summary":
			return nodeContent
		}
	case responsesUsage:
		return usageNode(key, responsesDetails)
	case responsesDetails:
		if string(key) == "cached_tokens" {
			return nodeCachedTokens
		}
	case nodeContent:
		return nodeContent
	}
	return 0
}
