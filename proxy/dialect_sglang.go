package proxy

// sglang is SGLang's own /generate: events with all the text so far (or its new
// part, as the server was started) and running counts in meta_info; [DONE] ends
// it. Of an answer that is a list, for several prompts or samples without
// streaming, only its bytes are counted.
// (https://docs.sglang.ai/basic_usage/sampling_params.html)
type sglang struct{ untyped }

func (sglang) path(p string) bool { return p == "/generate" }

const (
	sglangSampling = nodeOwn + iota
	sglangMeta
)

func (sglang) request(parent node, key []byte) node {
	switch parent {
	case nodeRoot:
		switch string(key) {
		case "stream":
			return nodeStream
		case "text", "input_ids": // one or the other
			return nodeText + slotPrompt
		case "image_data":
			return nodeMedia + slotPrompt*mediaKinds + mediaImage
		case "audio_data":
			return nodeMedia + slotPrompt*mediaKinds + mediaAudio
		case "video_data":
			return nodeMedia + slotPrompt*mediaKinds + mediaVideo
		case "sampling_params":
			return sglangSampling
		}
	case sglangSampling:
		switch string(key) {
		case "max_new_tokens":
			return nodeMaxTokens
		case "n":
			return nodeN
		}
	}
	return 0
}

func (sglang) answer(parent node, key []byte) node {
	switch parent {
	case nodeRoot:
		switch string(key) {
		case "text", "output_ids": // ids alone where the server has no tokenizer
			return nodeContent
		case "meta_info":
			return sglangMeta
		case "error":
			return nodeError
		}
	case sglangMeta:
		switch string(key) {
		case "cached_tokens":
			return nodeCachedTokens
		case "finish_reason":
			return nodeFinish
		}
		return usageNode(key, 0)
	}
	return 0
}
