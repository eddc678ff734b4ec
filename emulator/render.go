package emulator

import (
	"encoding/json"
	"strconv"

	"github.com/lull-project/lull/emulator/model"
)

// renderer writes the events and bodies of one answer, by appending to a buffer
// that its caller keeps: a token costs no allocation.
type renderer struct {
	chat    bool
	options streamOptions
	prompt  int
	head    string // up to and including "choices":
	whole   string // the same for an answer that is no stream
}

// newRenderer knows the answer's id, its time in Unix seconds and its model.
func newRenderer(a ask, id string, created int64, modelName string) *renderer {
	name, err := json.Marshal(modelName)
	if err != nil {
		name = []byte(`""`)
	}
	head := func(object string) string {
		return `{"id":"` + id + `","object":"` + object + `","created":` + strconv.FormatInt(created, 10) + `,"model":` + string(name) + `,"choices":`
	}
	r := &renderer{chat: a.chat, options: a.options, prompt: a.request.PromptTokens}
	if a.chat {
		r.head, r.whole = head("chat.completion.chunk"), head("chat.completion")
	} else {
		r.head, r.whole = head("text_completion"), head("text_completion")
	}
	return r
}

// appendRole appends chat's first event, which has no text.
func (r *renderer) appendRole(b []byte) []byte {
	b = append(b, "data: "...)
	b = append(b, r.head...)
	b = append(b, `[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
	return r.appendEnd(b, 0, r.options.IncludeUsage && r.options.ContinuousUsageStats)
}

// appendToken appends the event of the nth token, the last one with its reason.
func (r *renderer) appendToken(b []byte, n int, reason model.Reason) []byte {
	b = append(b, "data: "...)
	b = append(b, r.head...)
	if r.chat {
		b = append(b, `[{"index":0,"delta":{"content":"`...)
		b = appendWord(b, n)
		b = append(b, `"},"logprobs":null,"finish_reason":`...)
	} else {
		b = append(b, `[{"index":0,"text":"`...)
		b = appendWord(b, n)
		b = append(b, `","logprobs":null,"finish_reason":`...)
	}
	b = appendReason(b, reason)
	b = append(b, `,"stop_reason":null}]`...)
	return r.appendEnd(b, n, r.options.IncludeUsage && r.options.ContinuousUsageStats)
}

// appendUsage appends the last event of a stream whose client asked for it.
func (r *renderer) appendUsage(b []byte, n int) []byte {
	b = append(b, "data: "...)
	b = append(b, r.head...)
	b = append(b, `[]`...)
	return r.appendEnd(b, n, true)
}

// appendEnd closes an event's object and the event.
func (r *renderer) appendEnd(b []byte, n int, usage bool) []byte {
	if usage {
		b = r.appendUsageField(b, n)
	}
	return append(b, "}\n\n"...)
}

func (r *renderer) appendUsageField(b []byte, n int) []byte {
	b = append(b, `,"usage":{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(r.prompt), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(r.prompt+n), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(n), 10)
	return append(b, '}')
}

// appendWhole appends the body of an answer that is no stream.
func (r *renderer) appendWhole(b []byte, n int, reason model.Reason) []byte {
	b = append(b, r.whole...)
	if r.chat {
		b = append(b, `[{"index":0,"message":{"role":"assistant","content":"`...)
	} else {
		b = append(b, `[{"index":0,"text":"`...)
	}
	for i := 1; i <= n; i++ {
		b = appendWord(b, i)
	}
	if r.chat {
		b = append(b, `","tool_calls":[]},"logprobs":null,"finish_reason":`...)
	} else {
		b = append(b, `","logprobs":null,"finish_reason":`...)
	}
	b = appendReason(b, reason)
	b = append(b, `,"stop_reason":null}]`...)
	b = r.appendUsageField(b, n)
	return append(b, '}')
}

// appendDone appends what closes every stream.
func appendDone(b []byte) []byte { return append(b, "data: [DONE]\n\n"...) }

// appendError appends an error that comes after the status was sent.
func appendError(b []byte, e *apiError) []byte {
	b = append(b, "data: "...)
	b = append(b, e.body()...)
	return append(b, "\n\n"...)
}

func appendWord(b []byte, n int) []byte {
	b = append(b, 'w')
	b = strconv.AppendInt(b, int64(n), 10)
	return append(b, ' ')
}

func appendReason(b []byte, reason model.Reason) []byte {
	if reason == model.Unfinished {
		return append(b, "null"...)
	}
	b = append(b, '"')
	b = append(b, reason.String()...)
	return append(b, '"')
}
