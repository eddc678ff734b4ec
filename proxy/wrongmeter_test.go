package proxy

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

// timed is an event and when it was written, in ms after the request.
type timed struct {
	at    int
	event string
}

// figures are what a stream is measured by, in ms; a TTFT of -1 is none.
type figures struct {
	ttft   int
	gaps   []int
	tokens int
	failed bool
}

// timedStreams are timed by hand. Each sees a fault that public reports found in
// what gateways and load clients measure.
var timedStreams = map[string]struct {
	events []timed
	want   figures
}{
	"heartbeat and role come early": {
		[]timed{{5, ":\n\n"}, {10, roleChunk}, {200, chunk("a")}, {250, chunk("b")}, {300, usageChunk}, {300, doneChunk}},
		figures{ttft: 200, gaps: []int{50}, tokens: 3},
	},
	"reasoning comes first": {
		[]timed{{100, line(`{"choices":[{"delta":{"reasoning_content":"hm"}}]}`)}, {150, line(`{"choices":[{"delta":{"reasoning":"hm"}}]}`)}, {400, chunk("a")}},
		figures{ttft: 100, gaps: []int{50, 250}, tokens: 3},
	},
	"usage in every event": {
		[]timed{
			{100, line(`{"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":1}}`)},
			{150, line(`{"choices":[{"delta":{"content":"b"}}],"usage":{"completion_tokens":2}}`)},
			{210, line(`{"choices":[{"delta":{"content":"c"}}],"usage":{"completion_tokens":4}}`)},
		},
		figures{ttft: 100, gaps: []int{50, 60}, tokens: 4},
	},
	"an error in a 200": {
		[]timed{{3, line(`{"error":{"message":"m"}}`)}, {3, doneChunk}},
		figures{ttft: -1, failed: true},
	},
}

// stamps is a tapSink that keeps the times of content.
type stamps []time.Time

func (s *stamps) content(at time.Time, _ int) { *s = append(*s, at) }
func (s *stamps) step(time.Time)              {}

// tapMeter measures with Lull's tap and record.
func tapMeter(events []timed) figures {
	var at stamps
	tp := newTap(chat{}, tapSSE, &at)
	start := time.Unix(100, 0)
	for _, e := range events {
		tp.write([]byte(e.event), start.Add(time.Duration(e.at)*time.Millisecond))
	}
	tp.end()
	r := Record{Stream: true, Arrived: start, Outcome: OutcomeForwarded}
	fillCounts(&r, &tp.tapCounts)
	if tp.failed {
		r.Outcome = OutcomeUpstreamError
	}
	f := figures{ttft: -1, tokens: r.OutputTokens, failed: r.Failed()}
	if d, ok := r.TTFT(); ok {
		f.ttft = int(d.Milliseconds())
	}
	for i := 1; i < len(at); i++ {
		f.gaps = append(f.gaps, int(at[i].Sub(at[i-1]).Milliseconds()))
	}
	return f
}

// plainMeter measures in the obvious way; with nothing set it is right.
type plainMeter struct{ anyByte, lastEvent, contentOnly, ttftIsAGap, sums, errorsAreGood bool }

func (m plainMeter) measure(events []timed) figures {
	f := figures{ttft: -1}
	var at []int
	for _, e := range events {
		var d struct {
			Error   any
			Choices []struct{ Delta map[string]any }
			Usage   struct {
				CompletionTokens int `json:"completion_tokens"`
			}
		}
		data, _ := strings.CutPrefix(e.event, "data: ")
		_ = json.Unmarshal([]byte(data), &d) // [DONE] and comments are none
		f.failed = f.failed || d.Error != nil && !m.errorsAreGood
		if m.anyByte || m.generated(d.Choices) || d.Error != nil && m.errorsAreGood {
			at = append(at, e.at)
		}
		if n := d.Usage.CompletionTokens; m.sums {
			f.tokens += n
		} else {
			f.tokens = max(f.tokens, n)
		}
	}
	if f.tokens == 0 {
		f.tokens = len(at)
	}
	if len(at) == 0 {
		return f
	}
	f.ttft = at[0]
	if m.lastEvent {
		f.ttft = at[len(at)-1]
	}
	if m.ttftIsAGap {
		f.gaps = append(f.gaps, at[0])
	}
	for i := 1; i < len(at); i++ {
		f.gaps = append(f.gaps, at[i]-at[i-1])
	}
	return f
}

func (m plainMeter) generated(choices []struct{ Delta map[string]any }) bool {
	for _, c := range choices {
		for k, v := range c.Delta {
			text, _ := v.(string)
			if text != "" && k != "role" && (k == "content" || !m.contentOnly) {
				return true
			}
		}
	}
	return false
}

func TestStreamsTimedByHandAreMeasuredSo(t *testing.T) {
	for name, s := range timedStreams {
		if got := tapMeter(s.events); !reflect.DeepEqual(got, s.want) {
			t.Errorf("%s: Lull's tap: got %+v, want %+v", name, got, s.want)
		}
		if got := (plainMeter{}).measure(s.events); !reflect.DeepEqual(got, s.want) {
			t.Errorf("%s: a plain meter: got %+v, want %+v", name, got, s.want)
		}
	}
}

func TestStreamsTimedByHandSeeMetersThatAreWrong(t *testing.T) {
	for fault, c := range map[string]struct {
		meter plainMeter
		seen  string
	}{
		"any byte stops TTFT":       {plainMeter{anyByte: true}, "heartbeat and role come early"},
		"the last event stops TTFT": {plainMeter{lastEvent: true}, "heartbeat and role come early"},
		"TTFT is among the gaps":    {plainMeter{ttftIsAGap: true}, "heartbeat and role come early"},
		"only content stops TTFT":   {plainMeter{contentOnly: true}, "reasoning comes first"},
		"usage is added up":         {plainMeter{sums: true}, "usage in every event"},
		"an error is an answer":     {plainMeter{errorsAreGood: true}, "an error in a 200"},
	} {
		s := timedStreams[c.seen]
		if got := c.meter.measure(s.events); reflect.DeepEqual(got, s.want) {
			t.Errorf("%s: %q did not see it", fault, c.seen)
		}
	}
}
