package proxy

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// told is a tapSink that counts.
type told struct{ contents, steps, tokens int }

func (s *told) content(_ time.Time, tokens int) { s.contents++; s.tokens += tokens }
func (s *told) step(time.Time)                  { s.steps++ }

// tapAll runs a stream through a tap; cuts are where its reads end. The clock
// is the number of the read, so that a cut inside an event never moves it.
func tapAll(d dialect, mode tapMode, body []byte, cuts []int) (tapCounts, told) {
	var s told
	tp := newTap(d, mode, &s)
	last := 0
	for _, c := range append(append([]int{}, cuts...), len(body)) {
		if c = min(max(c, last), len(body)); c > last {
			tp.write(body[last:c], time.Unix(1, 0))
			last = c
		}
	}
	tp.end()
	return tp.tapCounts, s
}

func TestTapCountsContentEvents(t *testing.T) {
	chatChunk := func(delta string) string {
		return `data: {"choices":[{"delta":` + delta + `,"finish_reason":null}]}` + "\n\n"
	}
	for _, c := range []struct {
		name             string
		d                dialect
		body             string
		contents, events int
	}{
		{"role only is none", chat{}, roleChunk, 0, 0},
		{"usage only is none", chat{}, usageChunk, 0, 0},
		{"done is none", chat{}, doneChunk, 0, 0},
		{"comment is none", chat{}, ": ping\n\n:\n\n", 0, 0},
		{"text", chat{}, chunk("a"), 1, 1},
		{"reasoning", chat{}, chatChunk(`{"reasoning":"a"}`), 1, 1},
		{"reasoning_content", chat{}, chatChunk(`{"reasoning_content":"a","content":null}`), 1, 1},
		{"tool call", chat{}, chatChunk(`{"tool_calls":[{"index":0,"function":{"arguments":""},"extra":[]}]}`), 1, 1},
		{"no tool calls", chat{}, chatChunk(`{"content":"","tool_calls":[]}`), 0, 1},
		{"audio", chat{}, chatChunk(`{"audio":{"data":"AAA"}}`), 1, 1},
		{"content of parts", chat{}, chatChunk(`{"content":[{"type":"text","text":"a"}]}`), 1, 1},
		{"role with text", chat{}, chatChunk(`{"role":"assistant","content":"a"}`), 1, 1},
		{"empty text is a step", chat{}, chatChunk(`{"content":""}`), 0, 1},
		{"finish without text is none", chat{}, `data: {"choices":[{"delta":{"content":""},"finish_reason":"stop"}]}` + "\n\n", 0, 0},
		{"finish with text", chat{}, `data: {"choices":[{"delta":{"content":"z"},"finish_reason":"length"}]}` + "\n\n", 1, 1},
		{"completion text", completions{}, `data: {"choices":[{"text":"a","finish_reason":null}]}` + "\n\n", 1, 1},
		{"completion empty text", completions{}, `data: {"choices":[{"text":"","finish_reason":null}]}` + "\n\n", 0, 1},
		{"several lines of data", chat{}, "data: {\"choices\":[{\"delta\":\ndata: {\"content\":\"a\"}}]}\n\n", 1, 1},
		{"no space after the colon", chat{}, strings.ReplaceAll(chunk("a"), "data: ", "data:"), 1, 1},
		{"other fields", chat{}, "event: message\nid: 7\nretry: 3\ndatax: {}\n" + chunk("a"), 1, 1},
		{"byte order mark", chat{}, "\xef\xbb\xbf" + chunk("a"), 1, 1},
		{"no newline at the end", chat{}, strings.TrimRight(chunk("a"), "\n"), 1, 1},
		{"line separators inside text", chat{}, strings.Replace(chunk("a"), `"a"`, "\"\u2028\u2029\u0085\v\f\"", 1), 1, 1},
		{"responses delta", responses{}, `data: {"type":"response.output_text.delta","delta":"a"}` + "\n\n", 1, 1},
		{"responses other", responses{}, `data: {"type":"response.created","response":{"output":[]}}` + "\n\n", 0, 0},
		{"messages delta", messages{}, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n", 1, 1},
		{"messages ping", messages{}, "event: ping\ndata: {\"type\":\"ping\"}\n\n", 0, 0},
		{"triton", triton{}, `data: {"model_name":"m","text_output":"a"}` + "\n\n", 1, 1},
	} {
		for _, end := range []string{"\n", "\r\n", "\r"} {
			t.Run(fmt.Sprintf("%s/%q", c.name, end), func(t *testing.T) {
				body := []byte(strings.ReplaceAll(c.body, "\n", end))
				for cut := 0; cut <= len(body); cut++ {
					got, s := tapAll(c.d, tapSSE, body, []int{cut})
					if got.contents != c.contents || got.events != c.events || s.contents != c.contents || s.steps != c.events {
						t.Fatalf("cut at %d: got %d contents and %d events, want %d and %d", cut, got.contents, got.events, c.contents, c.events)
					}
				}
			})
		}
	}
}

func TestTapTakesTheLargestUsage(t *testing.T) {
	var b strings.Builder
	for n := 1; n <= 5; n++ {
		fmt.Fprintf(&b, `data: {"choices":[{"delta":{"content":"ab"}}],"usage":{"prompt_tokens":7,"completion_tokens":%d}}`+"\n\n", 2*n)
	}
	b.WriteString(doneChunk)
	got, s := tapAll(chat{}, tapSSE, []byte(b.String()), nil)
	if got.prompt != 7 || got.output != 10 || !got.usage {
		t.Errorf("usage: got %d prompt and %d output tokens, want 7 and 10", got.prompt, got.output)
	}
	if s.tokens != 10 || s.contents != 5 {
		t.Errorf("told: got %d tokens in %d events, want 10 in 5", s.tokens, s.contents)
	}
}

func TestTapReadsUsageAndDoneFromDifferentReads(t *testing.T) {
	body := []byte(chunk("a") + usageChunk + doneChunk)
	for cut := range body {
		got, _ := tapAll(chat{}, tapSSE, body, []int{cut})
		if got.output != 3 || got.prompt != 7 || got.cached != 2 || !got.terminated {
			t.Fatalf("cut at %d: got %+v, want 7 prompt, 3 output, 2 cached tokens and an end", cut, got)
		}
	}
}

func TestTapMarksAnErrorInsideTheStream(t *testing.T) {
	for name, c := range map[string]struct {
		d    dialect
		body string
	}{
		"vllm":       {chat{}, `data: {"error":{"message":"m","type":"t","param":null,"code":500}}` + "\n\n" + doneChunk},
		"older vllm": {chat{}, `data: {"object":"error","message":"m"}` + "\n\n"},
		"text":       {completions{}, `data: {"error":"broken"}` + "\n\n"},
		"llama.cpp":  {chat{}, `error: {"code":500}` + "\n\n"},
		"messages":   {messages{}, "event: error\ndata: {\"type\":\"error\",\"error\":{}}\n\n"},
		"responses":  {responses{}, `data: {"type":"response.failed","response":{"error":{}}}` + "\n\n"},
		"triton":     {triton{}, `data: {"error":"e"}` + "\n\n"},
	} {
		got, _ := tapAll(c.d, tapSSE, []byte(c.body), nil)
		if !got.failed || got.contents != 0 {
			t.Errorf("%s: got failed=%v contents=%d, want a failure and no content", name, got.failed, got.contents)
		}
	}
	got, _ := tapAll(chat{}, tapSSE, []byte(`data: {"error":null,"choices":[{"delta":{"content":"a"}}]}`+"\n\n"), nil)
	if got.failed || got.contents != 1 {
		t.Errorf("a null error: got %+v, want content", got)
	}
}

func TestTapCountsWhatIsNoJSONAndReadsOn(t *testing.T) {
	got, _ := tapAll(chat{}, tapSSE, []byte("data: {broken\n\ndata: 1 2\n\n"+chunk("a")), nil)
	if got.opaque != 1 || got.contents != 1 {
		t.Errorf("got %d opaque and %d contents, want 1 and 1", got.opaque, got.contents)
	}
}

func TestTapReadsAnEventOfAnyLength(t *testing.T) {
	long := chunk(strings.Repeat("x", 4<<20)) + usageChunk
	got, _ := tapAll(chat{}, tapSSE, []byte(long), []int{70_000, 1 << 20})
	if got.contents != 1 || got.output != 3 || got.opaque != 0 {
		t.Errorf("got %+v, want one content event and its usage", got)
	}
}

func TestTapReadsAnAnswerWithoutStreaming(t *testing.T) {
	body := `{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3}}`
	for cut := range body {
		got, _ := tapAll(chat{}, tapJSON, []byte(body), []int{cut})
		if got.contents != 1 || got.prompt != 7 || got.output != 3 || got.failed {
			t.Fatalf("cut at %d: got %+v, want one content and 7 + 3 tokens", cut, got)
		}
	}
}

func FuzzSSESplitAnywhere(f *testing.F) {
	f.Add([]byte(roleChunk+chunk("a\u2028b")+usageChunk+doneChunk), 3, 50)
	f.Add([]byte("\xef\xbb\xbfdata:1\r\rdata: [DONE]\r\n\r\n:\n\nerror: x"), 1, 2)
	f.Add([]byte(strings.ReplaceAll(chunk("a"), "\n", "\r")), 90, 91)
	f.Fuzz(func(t *testing.T, body []byte, a, b int) {
		whole, sWhole := tapAll(chat{}, tapSSE, body, nil)
		cut, sCut := tapAll(chat{}, tapSSE, body, []int{a, b})
		if !reflect.DeepEqual(whole, cut) || sWhole != sCut {
			t.Fatalf("cut at %d, %d: got %+v %+v, want %+v %+v", a, b, cut, sCut, whole, sWhole)
		}
		every := make([]int, len(body))
		for i := range every {
			every[i] = i
		}
		if single, s := tapAll(chat{}, tapSSE, body, every); !reflect.DeepEqual(whole, single) || s != sWhole {
			t.Fatalf("byte by byte: got %+v, want %+v", single, whole)
		}
		if want := naiveDispatches(body); whole.opaque > want {
			t.Fatalf("opaque: got %d of %d events", whole.opaque, want)
		}
	})
}

// naiveDispatches counts the events that carry data, in the obvious way.
func naiveDispatches(body []byte) int {
	s := strings.TrimPrefix(string(body), "\xef\xbb\xbf")
	s = strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n")
	n := 0
	for ev := range strings.SplitSeq(s, "\n\n") {
		for line := range strings.SplitSeq(ev, "\n") {
			if strings.HasPrefix(line, "data:") || strings.HasPrefix(line, "error:") {
				n++
				break
			}
		}
	}
	return n
}

func BenchmarkTap(b *testing.B) {
	ev := []byte(`data: {"id":"chatcmpl-8f2a1c0d","object":"chat.completion.chunk","created":1730000000,"model":"meta-llama/Llama-3.1-8B-Instruct","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n")
	var s told
	tp := newTap(chat{}, tapSSE, &s)
	at := time.Now()
	b.SetBytes(int64(len(ev)))
	b.ReportAllocs()
	for b.Loop() {
		tp.write(ev, at)
	}
}

func TestTapDoesNotAllocate(t *testing.T) {
	ev := []byte(chunk("token"))
	var s told
	tp := newTap(chat{}, tapSSE, &s)
	at := time.Now()
	if n := testing.AllocsPerRun(100, func() { tp.write(ev, at) }); n != 0 {
		t.Errorf("allocations per event: got %v, want 0", n)
	}
}
