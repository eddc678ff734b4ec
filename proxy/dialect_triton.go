package proxy

import "strings"

// triton is the generate, generate_stream and infer of Triton and KServe. Gated,
// timed and counted; infer's tensors are not read.
type triton struct{}

const tritonParameters = nodeOwn

// path is /v2/models/NAME[/versions/V]/{generate,generate_stream,infer}.
func (triton) path(p string) bool {
	rest, ok := strings.CutPrefix(p, "/v2/models/")
	if !ok {
		return false
	}
	model, rest, ok := strings.Cut(rest, "/")
	if !ok || model == "" {
		return false
	}
	if v, isVersion := strings.CutPrefix(rest, "versions/"); isVersion {
		if _, rest, ok = strings.Cut(v, "/"); !ok {
			return false
		}
	}
	return rest == "generate" || rest == "generate_stream" || rest == "infer"
}

func (triton) request(parent node, key []byte) node {
	switch parent {
	case nodeRoot:
		switch string(key) {
		case "text_input":
			return nodeText + slotPrompt
		case "stream":
			return nodeStream
		case "max_tokens":
			return nodeMaxTokens
		case "parameters":
			return tritonParameters
		}
	case tritonParameters:
		switch string(key) {
		case "stream":
			return nodeStream
		case "max_tokens":
			return nodeMaxTokens
		}
	}
	return 0
}

func (triton) answer(parent node, key []byte) node {
	if parent != nodeRoot {
		return 0
	}
	switch string(key) {
	case "text_output":
		return nodeContent
	case "error":
		return nodeError
	}
	return 0
}
