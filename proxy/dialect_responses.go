package proxy

// responses is OpenAI's /v1/responses: typed events, whose text is in "delta".
// Gated, timed and counted; its finer events are not told apart.
type responses struct{}

func (responses) path(p string) bool { return p == "/v1/responses" }

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
