package proxy

import "strings"

// triton is the generate, generate_stream and infer of Triton and KServe. A
// stream has no mark at its end; an error is an event, under 200 or 400, and
// generate says some of its own errors in a 200. Of infer's tensors those sent as
// JSON are read: text counts as the prompt, anything as the answer.
// (https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md)
type triton struct{ untyped }

const (
	tritonParameters = nodeOwn + iota
	tritonInputs
	tritonOutputs
)

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

// model is NAME of the path, at most as much of it as of a body's; no body says it.
func (triton) model(p string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(p, "/v2/models/"), "/")
	return name[:min(len(name), len(jsonScan{}.buf))]
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
		case "inputs":
			return tritonInputs
		}
	case tritonInputs:
		if string(key) == "data" {
			return nodeText + slotMessages // numbers there are no token ids for sure
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
	switch parent {
	case nodeRoot:
		switch string(key) {
		case "text_output":
			return nodeContent
		case "error":
			return nodeError
		case "outputs":
			return tritonOutputs
		case "num_input_tokens": // these two: the vLLM backend's, on request
			return nodePromptTokens
		case "num_output_tokens":
			return nodeOutputAdded
		}
	case tritonOutputs:
		if string(key) == "data" {
			return nodeContent
		}
	}
	return 0
}
