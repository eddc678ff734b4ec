package proxy

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// scanText scans a body in pieces of a size and returns what it found.
func scanText(d dialect, body string, piece int) (*requestScan, Request) {
	s := newRequestScan(d)
	for len(body) > 0 {
		n := min(piece, len(body))
		s.json.write([]byte(body[:n]))
		body = body[n:]
	}
	s.json.end()
	var r Request
	s.fill(&r)
	return s, r
}

func TestRequestScanFindsTheKeysThatCost(t *testing.T) {
	for _, c := range []struct {
		name, body string
		d          dialect
		want       Request
	}{
		{"chat", `{"model":"m","stream":true,"max_tokens":5,"messages":[{"role":"user","content":"hello"}]}`,
			chat{}, Request{Model: "m", Stream: true, MaxTokens: 5, PromptBytes: 5, Sequences: 1}},
		{"newer limit wins", `{"max_completion_tokens":9,"max_tokens":5}`,
			chat{}, Request{MaxTokens: 9, Sequences: 1}},
		{"null limit", `{"max_tokens":null,"stream":null,"n":null}`, chat{}, Request{Sequences: 1}},
		{"float limit", `{"max_tokens":1e2,"n":2.0}`, chat{}, Request{MaxTokens: 100, Sequences: 2}},
		{"nonsense limits", `{"max_tokens":-3,"n":1.5,"best_of":"4"}`, chat{}, Request{Sequences: 1}},
		{"huge limit", `{"max_tokens":99999999999999999999}`, chat{}, Request{MaxTokens: math.MaxInt32, Sequences: 1}},
		{"sequences", `{"n":2,"best_of":4,"prompt":"ab"}`, completions{}, Request{PromptBytes: 2, Sequences: 4}},
		{"several prompts", `{"n":2,"prompt":["ab","cde"]}`, completions{}, Request{PromptBytes: 5, Sequences: 4}},
		{"token ids", `{"prompt":[1,2,3]}`, completions{}, Request{PromptTokens: 3, Sequences: 1}},
		{"lists of token ids", `{"prompt":[[1,2],[3]]}`, completions{}, Request{PromptTokens: 3, Sequences: 2}},
		{"media is no text", `{"messages":[{"role":"user","content":[{"type":"text","text":"abc"},{"type":"image_url","image_url":{"url":"data:xxxxxxxx"}}]}]}`,
			chat{}, Request{PromptBytes: 3, Media: Media{Images: 1}, Sequences: 1}},
		{"media by kind", `{"messages":[{"content":[{"type":"image_url","image_url":"data:x"},{"type":"input_audio","input_audio":{"data":"x","format":"wav"}},` +
			`{"type":"video_url","video_url":{"url":"x"}},{"type":"file","file":{"file_data":"x"}},{"type":"image","source":{"type":"base64","data":"x"}}]}]}`,
			chat{}, Request{Media: Media{Images: 2, Audios: 1, Videos: 1, Files: 1}, Sequences: 1}},
		{"the last media of two", `{"messages":[{"image_url":"a"}],"messages":[{"content":"b"}]}`, chat{}, Request{PromptBytes: 1, Sequences: 1}},
		{"tools beside text", `{"tools":[{"function":{"name":"xy","parameters":{"image":{"description":"z"}}}}],"messages":"abc"}`,
			chat{}, Request{PromptBytes: 5, ToolBytes: 2, Sequences: 1}},
		{"keys deeper down mean nothing", `{"x":{"model":"no","max_tokens":3},"messages":[{"n":7,"content":"a"}]}`,
			chat{}, Request{PromptBytes: 1, Sequences: 1}},
		{"the last of two counts", `{"model":"a","messages":[{"content":"long"}],"messages":[{"content":"b"}],"model":"c"}`,
			chat{}, Request{Model: "c", PromptBytes: 1, Sequences: 1}},
		{"escaped key", `{"mod\u0065l":"\u006d\n"}`, chat{}, Request{Model: "m\n", Sequences: 1}},
		{"an array is no request", `[{"model":"m"}]`, chat{}, Request{Sequences: 1}},
		{"escapes count decoded", `{"prompt":"\u6e10\n\"é\ud83d\ude00"}`, completions{}, Request{PromptBytes: 11, Sequences: 1}},
		{"responses", `{"model":"m","input":"hello","instructions":"be","max_output_tokens":4,"stream":true}`,
			responses{}, Request{Model: "m", Stream: true, MaxTokens: 4, PromptBytes: 7, Sequences: 1}},
		{"messages", `{"model":"m","system":"sys","max_tokens":4,"messages":[{"role":"user","content":"hello"}]}`,
			messages{}, Request{Model: "m", MaxTokens: 4, PromptBytes: 8, Sequences: 1}},
		{"triton", `{"text_input":"hello","parameters":{"stream":true,"max_tokens":8}}`,
			triton{}, Request{Stream: true, MaxTokens: 8, PromptBytes: 5, Sequences: 1}},
		{"cut off", `{"model":"m","max_tok`, chat{}, Request{Model: "m", Sequences: 1}},
		{"cut off in the prompt", `{"model":"m","messages":[{"content":"abc`, chat{}, Request{Model: "m", PromptBytes: 3, Sequences: 1}},
		{"no json", `hello`, chat{}, Request{Sequences: 1}},
		{"empty", ``, chat{}, Request{Sequences: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, piece := range []int{1, 2, 7, 1 << 20} {
				if _, got := scanText(c.d, c.body, piece); !reflect.DeepEqual(got, c.want) {
					t.Errorf("in pieces of %d: got %+v, want %+v", piece, got, c.want)
				}
			}
		})
	}
}

func TestRequestScanReadsIncludeUsage(t *testing.T) {
	s, _ := scanText(chat{}, `{"stream_options":{"include_usage":true}}`, 3)
	if !s.includeUsage {
		t.Error("include_usage: got false, want true")
	}
}

func TestRequestScanLeavesWhatIsTooDeep(t *testing.T) {
	body := `{"x":` + strings.Repeat("[", 100_000) + `}`
	if s, _ := scanText(chat{}, body, 4096); s.json.state != jsonBad {
		t.Errorf("state: got %d, want bad", s.json.state)
	}
}

// naive reads a chat request with encoding/json.
func naive(body []byte) (Request, bool) {
	var doc map[string]any
	if json.Unmarshal(body, &doc) != nil || doc == nil {
		return Request{}, false
	}
	num := func(k string) int {
		v, _ := doc[k].(float64)
		if v < 0 || v != math.Trunc(v) {
			return 0
		}
		return int(min(v, math.MaxInt32))
	}
	r := Request{MaxTokens: num("max_tokens")}
	if m := num("max_completion_tokens"); m > 0 {
		r.MaxTokens = m
	}
	r.Stream, _ = doc["stream"].(bool)
	r.Model, _ = doc["model"].(string)
	for _, k := range []string{"messages", "tools"} {
		r.PromptBytes += naiveText(doc[k])
	}
	return r, true
}

func naiveText(v any) int {
	n := 0
	switch v := v.(type) {
	case string:
		return len(v)
	case []any:
		for _, e := range v {
			n += naiveText(e)
		}
	case map[string]any:
		for k, e := range v {
			if at := textChild(nodeText, []byte(k)); at != 0 && at < nodeMedia {
				n += naiveText(e)
			}
		}
	}
	return n
}

func FuzzRequestScanFindsWhatEncodingJSONFinds(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","stream":true,"max_tokens":5,"messages":[{"role":"user","content":"he\u0000llo"}]}`,
		`{"max_tokens":1e2,"tools":[{"function":{"name":"x","parameters":{}}}],"messages":"\/\b"}`,
		`{"model":"a","model":2,"stream":false}`, `[]`, `"x"`, ` {} `, `{"a":[[[]]],"messages":[1,"b",null]}`,
	} {
		f.Add([]byte(s), uint8(3))
	}
	f.Fuzz(func(t *testing.T, body []byte, piece uint8) {
		_, got := scanText(chat{}, string(body), int(piece)+1)
		_, whole := scanText(chat{}, string(body), len(body)+1)
		if got.Prefix, whole.Prefix = nil, nil; !reflect.DeepEqual(got, whole) {
			t.Fatalf("cut in pieces of %d: got %+v, whole %+v", piece+1, got, whole)
		}
		want, ok := naive(body)
		if !ok || !comparable(body) {
			return
		}
		if got.Model != cutTo(want.Model, 128) || got.Stream != want.Stream || got.MaxTokens != want.MaxTokens || got.PromptBytes != want.PromptBytes {
			t.Fatalf("%q: got %+v, want %+v", body, got, want)
		}
	})
}

// comparable leaves out what the two read differently on purpose: replaced
// invalid text, lone surrogates, great depth, numbers too long to keep, and
// keys twice inside an object below the top.
func comparable(body []byte) bool {
	if !utf8.Valid(body) || len(body) > 100 || strings.Contains(strings.ToLower(string(body)), `\ud`) {
		return false
	}
	return !twiceBelowTop(json.NewDecoder(strings.NewReader(string(body))), 0)
}

func twiceBelowTop(d *json.Decoder, depth int) bool {
	tok, err := d.Token()
	if err != nil {
		return false
	}
	delim, ok := tok.(json.Delim)
	if !ok {
		return false
	}
	keys := map[any]bool{}
	twice := false
	for d.More() {
		if delim == '{' {
			k, _ := d.Token()
			twice = twice || depth > 0 && keys[k]
			keys[k] = true
		}
		twice = twiceBelowTop(d, depth+1) || twice
	}
	_, _ = d.Token()
	return twice
}

func cutTo(s string, n int) string { return s[:min(n, len(s))] }

func BenchmarkRequestScan(b *testing.B) {
	body := []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("some words of a prompt ", 1000) + `"}],"max_tokens":100}`)
	s := newRequestScan(chat{})
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		s.json.reset(s)
		s.json.write(body)
	}
}
