package proxy

import (
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// event is one event of a stream with a type, as Responses and Messages write it.
func event(kind, data string) string {
	return "event: " + kind + "\ndata: {\"type\":\"" + kind + "\"" + data + "}\n\n"
}

func line(data string) string { return "data: " + data + "\n\n" }

// dialectStream is a stream of one dialect and what its account must say. Each
// part leaves the upstream when the client has the one before it.
type dialectStream struct {
	name, path, media string
	before            []string // nothing generated yet
	contents          []string // each with something generated
	after             []string
	outcome           string // empty: forwarded
	events            int    // generation events; 0: as many as contents
	prompt, cached    int
	output            int // tokens; 0 with source "": none
	source            string
	terminated        bool
}

const sseMedia = "text/event-stream"

var (
	responsesBegin = []string{
		event("response.created", `,"response":{"id":"r","status":"in_progress","error":null,"output":[],"usage":null}`),
		event("response.output_item.added", `,"output_index":0,"item":{"type":"message","content":[]}`),
		event("response.content_part.added", `,"part":{"type":"output_text","text":""}`),
	}
	responsesText = []string{
		event("response.reasoning_text.delta", `,"delta":"hm"`),
		event("response.output_text.delta", `,"delta":"a"`),
		event("response.function_call_arguments.delta", `,"delta":"{\"x\""`),
	}
	responsesUsageJSON = `"usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":2},"output_tokens":5,"total_tokens":12}`
	messagesBegin      = []string{
		event("message_start", `,"message":{"id":"m","role":"assistant","content":[],"usage":{"input_tokens":7,"cache_read_input_tokens":3,"cache_creation_input_tokens":2,"output_tokens":1}}`),
		event("ping", ""),
		event("content_block_start", `,"index":0,"content_block":{"type":"text","text":""}`),
	}
	messagesText = []string{
		event("content_block_delta", `,"index":0,"delta":{"type":"thinking_delta","thinking":"hm"}`),
		event("content_block_delta", `,"index":0,"delta":{"type":"text_delta","text":"a"}`),
		event("content_block_start", `,"index":1,"content_block":{"type":"tool_use","id":"t","name":"look","input":{}}`),
		event("content_block_delta", `,"index":1,"delta":{"type":"input_json_delta","partial_json":"{\"x\""}`),
	}
	messagesDeltaUsage = event("message_delta", `,"delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}`)
)

var dialectStreams = []dialectStream{
	{
		name: "responses completed", path: "/v1/responses", media: sseMedia, before: responsesBegin, contents: responsesText,
		after:  []string{event("response.output_text.done", `,"text":"a"`), event("response.completed", `,"response":{"status":"completed","error":null,"output":[{"content":[{"text":"a"}]}],`+responsesUsageJSON+`}`)},
		prompt: 7, cached: 2, output: 5, source: TokensFromUsage, terminated: true,
	},
	{
		name: "responses incomplete", path: "/v1/responses", media: sseMedia, before: responsesBegin, contents: responsesText,
		after:  []string{event("response.incomplete", `,"response":{"status":"incomplete","error":null,"incomplete_details":{"reason":"max_output_tokens"},`+responsesUsageJSON+`}`)},
		prompt: 7, cached: 2, output: 5, source: TokensFromUsage, terminated: true,
	},
	{
		name: "responses failed", path: "/v1/responses", media: sseMedia, before: responsesBegin, contents: responsesText[:1],
		after:   []string{event("response.failed", `,"response":{"status":"failed","error":{"code":"server_error","message":"m"},"usage":null}`)},
		outcome: OutcomeUpstreamError, output: 1, source: TokensFromEvents, terminated: true,
	},
	{
		name: "responses error event", path: "/v1/responses", media: sseMedia, before: responsesBegin,
		after:   []string{event("error", `,"code":"server_error","message":"m","param":null`)},
		outcome: OutcomeUpstreamError,
	},
	{
		name: "messages", path: "/v1/messages", media: sseMedia + "; charset=utf-8", before: messagesBegin, contents: messagesText,
		after: []string{
			event("content_block_delta", `,"index":0,"delta":{"type":"signature_delta","signature":"c2ln"}`), event("content_block_stop", `,"index":1`),
			event("ping", ""), messagesDeltaUsage, event("message_stop", ""),
		},
		prompt: 12, cached: 3, output: 9, source: TokensFromUsage, terminated: true,
	},
	{
		name: "messages overloaded", path: "/v1/messages", media: sseMedia, before: messagesBegin, contents: messagesText[:2],
		after:   []string{event("error", `,"error":{"type":"overloaded_error","message":"Overloaded"}`)},
		outcome: OutcomeUpstreamError, prompt: 12, cached: 3, output: 2, source: TokensFromEvents,
	},
	{
		name: "triton", path: "/v2/models/m/generate_stream", media: sseMedia + "; charset=utf-8",
		contents: []string{line(`{"index":0,"model_name":"m","text_output":"The "}`), line(`{"index":1,"model_name":"m","text_output":"end"}`)},
		output:   2, source: TokensFromEvents,
	},
	{
		name: "triton with counts", path: "/v2/models/m/versions/1/generate_stream", media: sseMedia,
		contents: []string{line(`{"text_output":"a","num_input_tokens":6,"num_output_tokens":1}`), line(`{"text_output":"b c","num_input_tokens":6,"num_output_tokens":3}`)},
		prompt:   6, output: 4, source: TokensFromUsage,
	},
	{
		name: "triton error in the stream", path: "/v2/models/m/generate_stream", media: sseMedia, contents: []string{line(`{"text_output":"a"}`)},
		after: []string{line(`{"error":"Failed to process the request(s) for model 'm'"}`)}, outcome: OutcomeUpstreamError, output: 1, source: TokensFromEvents,
	},
	{
		name: "ollama generate", path: "/api/generate", media: "application/x-ndjson",
		contents: []string{"{\"model\":\"m\",\"response\":\"a\",\"done\":false}\n", "{\"response\":\"\",\"thinking\":\"hm\",\"done\":false}\r\n"},
		after:    []string{"{\"response\":\"\",\"done\":false}\n", "{\"model\":\"m\",\"response\":\"\",\"done\":true,\"done_reason\":\"stop\",\"prompt_eval_count\":8,\"eval_count\":3}\n"},
		events:   3, prompt: 8, output: 3, source: TokensFromUsage, terminated: true,
	},
	{
		name: "ollama chat", path: "/api/chat", media: "application/x-ndjson; charset=utf-8",
		contents: []string{`{"message":{"role":"assistant","content":"a"},"done":false}` + "\n", `{"message":{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f"}}]},"done":false}` + "\n"},
		after:    []string{`{"message":{"role":"assistant","content":""},"done":true,"prompt_eval_count":8,"eval_count":2}`},
		prompt:   8, output: 2, source: TokensFromUsage, terminated: true,
	},
	{
		name: "ollama error", path: "/api/chat", media: "application/x-ndjson", contents: []string{`{"message":{"content":"a"},"done":false}` + "\n"},
		after: []string{`{"error":"model runner has stopped"}` + "\n"}, outcome: OutcomeUpstreamError, output: 1, source: TokensFromEvents,
	},
	{
		name: "llama.cpp", path: "/completion", media: sseMedia,
		contents: []string{line(`{"index":0,"content":" the","tokens":[5],"stop":false,"tokens_predicted":1,"tokens_evaluated":7}`), line(`{"content":" end","stop":false,"tokens_predicted":2,"tokens_evaluated":7}`)},
		after:    []string{line(`{"content":"","stop":true,"stop_type":"eos","tokens_predicted":3,"tokens_evaluated":7,"timings":{"cache_n":4,"prompt_n":3}}`)},
		prompt:   7, cached: 4, output: 3, source: TokensFromUsage, terminated: true,
	},
	{
		name: "llama.cpp error", path: "/completion", media: sseMedia, contents: []string{line(`{"content":"a","stop":false,"tokens_predicted":1}`)},
		after: []string{"error: {\"code\":500,\"message\":\"m\"}\n\n"}, outcome: OutcomeUpstreamError, output: 1, source: TokensFromUsage,
	},
	{
		name: "sglang", path: "/generate", media: sseMedia,
		contents: []string{
			line(`{"text":"The","output_ids":[1],"meta_info":{"id":"i","finish_reason":null,"prompt_tokens":6,"completion_tokens":1,"cached_tokens":2}}`),
			line(`{"text":"The end","output_ids":[1,2],"meta_info":{"finish_reason":{"type":"stop"},"prompt_tokens":6,"completion_tokens":2,"cached_tokens":2}}`),
		},
		after: []string{doneChunk}, prompt: 6, cached: 2, output: 2, source: TokensFromUsage, terminated: true,
	},
	{
		name: "more cached than there is", path: "/generate", media: sseMedia,
		contents: []string{line(`{"text":"a","meta_info":{"prompt_tokens":6,"completion_tokens":1,"cached_tokens":1e99}}`)},
		after:    []string{doneChunk}, prompt: 6, cached: 6, output: 1, source: TokensFromUsage, terminated: true,
	},
	{
		name: "cached tokens below none", path: "/generate", media: sseMedia,
		contents: []string{line(`{"text":"a","meta_info":{"prompt_tokens":6,"completion_tokens":1,"cached_tokens":-3}}`)},
		after:    []string{doneChunk}, prompt: 6, output: 1, source: TokensFromUsage, terminated: true,
	},
	{
		name: "sglang error", path: "/generate", media: sseMedia, after: []string{line(`{"error":{"message":"aborted"}}`), doneChunk},
		outcome: OutcomeUpstreamError, terminated: true,
	},
}

// TestStreamsOfEveryDialectAreTimedAndCounted checks TTFT, gaps, tokens and the
// outcome of each against what the client itself saw.
func TestStreamsOfEveryDialectAreTimedAndCounted(t *testing.T) {
	for _, c := range dialectStreams {
		t.Run(c.name, func(t *testing.T) {
			rec, told, had := inSteps(t, c.path, `{"stream":true}`, c.media, slices.Concat(c.before, c.contents, c.after))
			if want := cmp(c.outcome, OutcomeForwarded); rec.Outcome != want || !rec.Stream || rec.Terminated != c.terminated {
				t.Errorf("ending: got %s, stream %v, terminated %v; want %s, true, %v", rec.Outcome, rec.Stream, rec.Terminated, want, c.terminated)
			}
			if rec.PromptTokens != c.prompt || rec.CachedTokens != c.cached || rec.OutputTokens != c.output || rec.TokenSource != c.source {
				t.Errorf("tokens: got %d prompt, %d cached, %d output by %q; want %d, %d, %d by %q",
					rec.PromptTokens, rec.CachedTokens, rec.OutputTokens, rec.TokenSource, c.prompt, c.cached, c.output, c.source)
			}
			n := len(c.contents)
			if want := max(c.events, n); rec.Contents != n || rec.Events != want || len(told.content) != n || len(told.events) != want {
				t.Errorf("events: got %d with content of %d, told %d of %d; want %d of %d", rec.Contents, rec.Events, len(told.content), len(told.events), n, want)
			}
			mustBeTimed(t, c, rec, told.content, had)
		})
	}
}

// mustBeTimed wants each content's time between the client's having the part
// before it and the part after it, which left only then.
func mustBeTimed(t *testing.T, c dialectStream, rec Record, told, had []time.Time) {
	t.Helper()
	for i, at := range told {
		part := len(c.before) + i
		if part+1 < len(had) && at.After(had[part+1]) || part > 0 && at.Before(had[part-1]) {
			t.Errorf("content %d: timed at %v, want it between the client's parts", i, at)
		}
	}
	ttft, ok := rec.TTFT()
	if want := len(told) > 0 && c.outcome == ""; ok != want {
		t.Errorf("TTFT: got %v, %v; want one: %v", ttft, ok, want)
	}
	if len(told) > 0 && (rec.FirstContent != told[0] || rec.LastContent != told[len(told)-1]) {
		t.Errorf("content from %v to %v, want the first and the last that were told", rec.FirstContent, rec.LastContent)
	}
}

// cmp is s, or d where s is empty.
func cmp(s, d string) string {
	if s == "" {
		return d
	}
	return s
}

// dialectAnswers are whole answers without streaming, some of them odd ones of
// real servers.
var dialectAnswers = []struct {
	name, path, media string
	status            int
	body              string
	contents          int
	prompt, output    int
	outcome           string
}{
	{"responses", "/v1/responses", "application/json", 200, `{"status":"completed","error":null,"output":[{"type":"message","content":[{"type":"output_text","text":"a"}]}],` + responsesUsageJSON + `}`, 1, 7, 5, ""},
	{"responses failed", "/v1/responses", "application/json", 200, `{"status":"failed","error":{"code":"server_error"},"output":[]}`, 0, 0, 0, OutcomeUpstreamError},
	{"messages", "/v1/messages", "application/json", 200, `{"type":"message","content":[{"type":"text","text":"a"}],"usage":{"input_tokens":4,"cache_read_input_tokens":3,"output_tokens":2}}`, 1, 7, 2, ""},
	{"messages with a tool", "/v1/messages", "application/json", 200, `{"type":"message","content":[{"type":"tool_use","name":"f","input":{}}],"usage":{"input_tokens":4,"output_tokens":2}}`, 1, 4, 2, ""},
	{"messages overloaded", "/v1/messages", "application/json", 529, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`, 0, 0, 0, OutcomeUpstreamError},
	{"triton generate", "/v2/models/m/generate", "application/json", 200, `{"model_name":"m","model_version":"1","text_output":"echo: hello"}`, 1, 0, 0, ""},
	{"triton generate, an error in a 200", "/v2/models/m/generate", "application/json", 200, `{"error":"generate expects model to produce exactly 1 response, use generate stream for model that generates various number of responses"}`, 0, 0, 0, OutcomeUpstreamError},
	{"triton, an error as plain text in a 200", "/v2/models/m/generate", "text/plain", 200, `{"error":"Model version not ready"}`, 0, 0, 0, OutcomeUpstreamError},
	{"triton infer", "/v2/models/m/infer", "application/json", 200, `{"id":"42","model_name":"m","outputs":[{"name":"text_output","datatype":"BYTES","shape":[2],"data":["hi","there"]}]}`, 1, 0, 0, ""},
	{"triton infer on a decoupled model", "/v2/models/m/infer", "application/json", 501, `{"error":"HTTP end point doesn't support models with decoupled transaction policy"}`, 0, 0, 0, OutcomeUpstreamError},
	{"triton, a stream with status 400", "/v2/models/m/generate_stream", sseMedia, 400, line(`{"error":"Failed to process"}`), 0, 0, 0, OutcomeUpstreamRefused},
	{"ollama", "/api/chat", "application/json", 200, `{"message":{"role":"assistant","content":"a"},"done":true,"prompt_eval_count":8,"eval_count":2}`, 1, 8, 2, ""},
	{"ollama only loads", "/api/generate", "application/json", 200, `{"model":"m","response":"","done":true,"done_reason":"load"}`, 0, 0, 0, ""},
	{"llama.cpp", "/completion", "application/json; charset=utf-8", 200, `{"content":"a b","stop":true,"tokens_predicted":2,"tokens_evaluated":7}`, 1, 7, 2, ""},
	{"llama.cpp while it loads", "/completion", "application/json", 503, `{"error":{"message":"Loading model","type":"unavailable_error","code":503}}`, 0, 0, 0, OutcomeUpstreamError},
	{"sglang", "/generate", "application/json", 200, `{"text":"a b","meta_info":{"finish_reason":{"type":"length"},"prompt_tokens":6,"completion_tokens":2}}`, 1, 6, 2, ""},
	{"sglang, a list", "/generate", "application/json", 200, `[{"text":"a"},{"text":"b"}]`, 0, 0, 0, ""},
	{"nothing at all", "/generate", "", 200, "", 0, 0, 0, ""},
}

func TestAnswersOfEveryDialectWithoutStreamingAreCounted(t *testing.T) {
	for _, c := range dialectAnswers {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Content-Type"] = nil
				if c.media != "" {
					w.Header().Set("Content-Type", c.media)
				}
				w.WriteHeader(c.status)
				io.WriteString(w, c.body)
			})
			if res := r.post(c.path, `{}`); res.StatusCode != c.status || text(t, res) != c.body {
				t.Errorf("answer: got %d, want it unchanged", res.StatusCode)
			}
			rec := r.seen.record(t)
			if want := cmp(c.outcome, OutcomeForwarded); rec.Outcome != want || rec.Contents != c.contents || rec.PromptTokens != c.prompt || rec.OutputTokens != c.output {
				t.Errorf("got %s, %d contents, %d + %d tokens; want %s, %d, %d + %d", rec.Outcome, rec.Contents, rec.PromptTokens, rec.OutputTokens, want, c.contents, c.prompt, c.output)
			}
			if _, ok := rec.TTFT(); ok != (c.contents > 0) {
				t.Errorf("TTFT: got one: %v, want %v", ok, c.contents > 0)
			}
			if c.media == "" && r.proxy.Stats().Opaque != 0 {
				t.Error("an empty answer was counted as opaque")
			}
		})
	}
}

func TestRequestsOfNativeDialectsAreScanned(t *testing.T) {
	for _, c := range []struct {
		name, body string
		d          dialect
		want       Request
	}{
		{"ollama generate", `{"model":"m","prompt":"hello","system":"be","options":{"num_predict":9,"seed":1},"images":["AAAA"]}`,
			ollama{}, Request{Model: "m", MaxTokens: 9, PromptBytes: 7, Media: Media{Images: 1}, Sequences: 1}},
		{"ollama without a limit", `{"options":{"num_predict":-1}}`, ollama{}, Request{Sequences: 1}},
		{"ollama chat", `{"model":"m","stream":true,"messages":[{"role":"user","content":"hello","images":["AAAA"]}]}`,
			ollama{}, Request{Model: "m", Stream: true, PromptBytes: 5, Media: Media{Images: 1}, Sequences: 1}},
		{"llama.cpp", `{"prompt":"hello","n_predict":9,"max_tokens":4,"stream":true}`,
			llamacpp{}, Request{Stream: true, MaxTokens: 9, PromptBytes: 5, Sequences: 1}},
		{"llama.cpp ids", `{"prompt":[1,2,3],"n_predict":-1}`, llamacpp{}, Request{PromptTokens: 3, Sequences: 1}},
		{"llama.cpp infill", `{"input_prefix":"ab","input_suffix":"c","input_extra":[{"filename":"d","text":"e"}]}`,
			llamacpp{}, Request{PromptBytes: 5, ToolBytes: 2, Sequences: 1}},
		{"sglang", `{"text":"hello","sampling_params":{"max_new_tokens":9,"n":2},"stream":true}`,
			sglang{}, Request{Stream: true, MaxTokens: 9, PromptBytes: 5, Sequences: 2}},
		{"sglang media", `{"text":"hello","image_data":["AA","BB"],"audio_data":"CC"}`, sglang{},
			Request{PromptBytes: 5, Media: Media{Images: 2, Audios: 1}, Sequences: 1}},
		{"sglang ids", `{"input_ids":[1,2,3]}`, sglang{}, Request{PromptTokens: 3, Sequences: 1}},
		{"triton infer", `{"inputs":[{"name":"text_input","datatype":"BYTES","shape":[1],"data":["hello"]},{"name":"n","datatype":"INT32","data":[16]}]}`,
			triton{}, Request{PromptBytes: 5, Sequences: 1}},
	} {
		for _, piece := range []int{1, 5, 1 << 20} {
			if _, got := scanText(c.d, c.body, piece); !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s in pieces of %d: got %+v, want %+v", c.name, piece, got, c.want)
			}
		}
	}
}

func TestLinesOfAnAnswerMayBeCutAnywhere(t *testing.T) {
	body := []byte("\n{\"response\":\"a\",\"done\":false}\n \r\n{\"response\":\"b\",\"done\":false}\r\nno JSON\n{\"done\":true,\"eval_count\":2}")
	for cut := 0; cut <= len(body); cut++ {
		got, s := tapAll(ollama{}, tapLines, body, []int{cut})
		if got.contents != 2 || got.output != 2 || got.opaque != 1 || !got.terminated || s.contents != 2 {
			t.Fatalf("cut at %d: got %+v, want 2 contents, 2 tokens, an end and one line that is no JSON", cut, got)
		}
	}
}

func FuzzLinesSplitAnywhere(f *testing.F) {
	f.Add([]byte("{\"response\":\"a\",\"done\":false}\r\n\n {\"done\":true,\"eval_count\":2}"), uint8(3))
	f.Add([]byte("no\n[\n{}{}\n\r"), uint8(0))
	f.Fuzz(func(t *testing.T, body []byte, piece uint8) {
		whole, told := tapAll(ollama{}, tapLines, body, nil)
		var cuts []int
		for at := 0; at < len(body); at += int(piece) + 1 {
			cuts = append(cuts, at)
		}
		if cut, s := tapAll(ollama{}, tapLines, body, cuts); !reflect.DeepEqual(cut, whole) || s != told {
			t.Fatalf("in pieces of %d: got %+v, whole %+v", piece+1, cut, whole)
		}
		documents := 0
		for l := range strings.SplitSeq(string(body), "\n") {
			if strings.Trim(l, " \t\r") != "" {
				documents++
			}
		}
		if whole.opaque > documents || whole.contents > documents {
			t.Fatalf("got %+v of %d documents", whole, documents)
		}
	})
}

func TestNoTapAllocates(t *testing.T) {
	for _, c := range dialectStreams {
		mode, _ := framing(mediaType(http.Header{"Content-Type": {c.media}}))
		for _, part := range slices.Concat(c.before, c.contents, c.after) {
			var s told
			tp, bytes := newTap(dialectOf(c.path), mode, &s), []byte(part)
			if n := testing.AllocsPerRun(20, func() { tp.write(bytes, time.Time{}) }); n != 0 {
				t.Errorf("%s: %q: got %v allocations, want none", c.name, part, n)
			}
		}
	}
}
