package proxy

// dialect is one API: its paths, and what the keys of its JSON mean. It holds no
// state. To add one, write a file with a type and add it to dialects.
type dialect interface {
	// path says whether POST on this path speaks the dialect.
	path(p string) bool
	// request and answer map a key to a node: of a request's body, and of one
	// event of a stream or a whole answer. key is nil when it is too long.
	request(parent node, key []byte) node
	answer(parent node, key []byte) node
	// typed is what an event of a type means for its answer; it is asked for the
	// text under nodeType. Embed untyped where events have none.
	typed(name []byte) meaning
}

// pathNamed is a dialect whose paths name the model that is asked for.
type pathNamed interface{ model(path string) string }

var dialects = [...]dialect{chat{}, completions{}, responses{}, messages{}, triton{}, ollama{}, llamacpp{}, sglang{}}

func dialectOf(path string) dialect {
	for _, d := range dialects {
		if d.path(path) {
			return d
		}
	}
	return nil
}

// meaning is a set of what an event's type says of its answer.
type meaning uint8

const (
	meansEnd     meaning = 1 << iota // the stream ends in the dialect's own way
	meansFailure                     // the answer is an error
)

// untyped is the part of a dialect whose events have no types.
type untyped struct{}

func (untyped) typed([]byte) meaning { return 0 }

// Nodes with one meaning in all dialects. nodeRoot is 1.
const (
	// In requests.
	nodeModel node = iota + 2
	nodeStream
	nodeMaxTokens
	nodeMaxCompletionTokens // wins over nodeMaxTokens
	nodeN
	nodeBestOf
	nodeStreamOptions
	nodeIncludeUsage

	// In answers. nodeContent is content if it has something in it: a string that
	// is not empty, a number, true, an object with a key, an array with an element.
	nodeContent
	nodeChoice // an element of it is one choice
	nodeRole   // the choice has a role
	nodeFinish // not null: the choice ends here
	nodeDone   // false: one step of generation; true: the answer ends here
	nodeError  // with something in it, as content has: the answer is an error
	nodeType   // an event's type, as Responses and Messages name it

	// Numbers of usage: the largest counts.
	nodePromptTokens
	nodeCachedTokens // a part of the prompt's
	nodeCachedBeside // cached ones that the prompt's number leaves out
	nodeCacheWritten // likewise, written to the cache
	nodeOutputTokens
	nodeOutputAdded // the event's own tokens: these are added up

	// From here a dialect's own places on the way.
	nodeOwn node = 64

	// From here the request's text: nodeText + slot. What lies below keeps the
	// node.
	nodeText node = 128

	// And from here what is no text: nodeMedia + slot · mediaKinds + kind. Nothing
	// below it is looked at.
	nodeMedia node = 160
)

// The kinds of nodeMedia.
const (
	mediaImage = iota
	mediaAudio
	mediaVideo
	mediaFile
	mediaKinds
)

// The slots of nodeText. A key that comes twice counts once: the last one, as
// JSON parsers have it.
const (
	slotMessages = iota
	slotPrompt
	slotSystem
	slotTools
	textSlots
)

// textChild is the node of a key below text: names and kinds are no text, and media
// are counted. The schema of a tool names media without having any.
func textChild(parent node, key []byte) node {
	if parent >= nodeMedia {
		return 0
	}
	kind := 0
	switch string(key) {
	case "role", "type", "id", "tool_call_id", "call_id", "status", "url", "data", "media_type",
		"detail", "cache_control", "encrypted_content", "signature", "file_id":
		return 0
	case "image_url", "image", "images", "source", "multimodal_data":
		kind = mediaImage
	case "input_audio", "audio", "audio_url":
		kind = mediaAudio
	case "video_url", "video":
		kind = mediaVideo
	case "file", "file_data", "file_url":
		kind = mediaFile
	default:
		return parent
	}
	if parent == nodeText+slotTools {
		return 0
	}
	return nodeMedia + (parent-nodeText)*mediaKinds + node(kind)
}
