package calibrate

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

const (
	role    = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"
	text    = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"
	thought = "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"b\"}}]}\n\n"
	usage   = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\n"
	done    = "data: [DONE]\n\n"
)

// ticking is a clock that moves by a second at each look.
func ticking() func() time.Time {
	at := time.Unix(0, 0)
	return func() time.Time { at = at.Add(time.Second); return at }
}

func TestStreamIsStampedAtEachChunkWithContent(t *testing.T) {
	firsts := 0
	got, err := readStream(strings.NewReader(": ping\n\n"+role+thought+text+"event: x\n"+text+usage+done+text), ticking(), func() { firsts++ })
	if err != nil || len(got.contents) != 3 || got.prompt != 7 || got.output != 3 || firsts != 1 {
		t.Fatalf("got %+v, %v, first %d times", got, err, firsts)
	}
	if first := got.contents[0]; !first.Equal(time.Unix(2, 0)) {
		t.Errorf("the first content came at %v, want the second event: a role alone is none", first)
	}
	if gaps := got.gaps(); len(gaps) != 2 || gaps[0] != time.Second {
		t.Errorf("gaps %v, want two of a second", gaps)
	}
}

func TestBadStreamSaysWhatCame(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"cut":        {role + text, "got the stream's end without data: [DONE], want a whole answer"},
		"no JSON":    {"data: {oops\n\n", `got the event "{oops", want JSON: `},
		"an error":   {text + "data: {\"error\":{\"message\":\"out of blocks\"}}\n\n", `got the error {"message":"out of blocks"} inside the stream, want an answer`},
		"no content": {role + usage + done, "got an answer without content, want text; TTFT stops at the first of it"},
		"no usage":   {text + done, "got no usage, want prompt_tokens in the last event (stream_options.include_usage); TTFT is fitted over them"},
	} {
		if _, err := readStream(strings.NewReader(c.in), ticking(), func() {}); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
	broken := io.MultiReader(strings.NewReader(text), iotest.ErrReader(errors.New("reset")))
	if _, err := readStream(broken, ticking(), func() {}); err == nil || err.Error() != "the stream broke after 1 chunks: reset" {
		t.Errorf("got %v, want how far it came", err)
	}
}

func FuzzStreamIsReadTheSameHoweverItIsSplit(f *testing.F) {
	f.Add([]byte(role + text + thought + usage + done))
	f.Add([]byte("data: [DONE]"))
	f.Fuzz(func(t *testing.T, in []byte) {
		whole, err := readStream(strings.NewReader(string(in)), ticking(), func() {})
		split, splitErr := readStream(iotest.OneByteReader(strings.NewReader(string(in))), ticking(), func() {})
		if len(whole.contents) != len(split.contents) || whole.prompt != split.prompt || whole.output != split.output || (err == nil) != (splitErr == nil) {
			t.Fatalf("whole %+v %v, split %+v %v", whole, err, split, splitErr)
		}
	})
}

func TestServersTextIsShortenedToOneLine(t *testing.T) {
	if got := oneLine([]byte(" a\n\tb ")); got != "a b" {
		t.Errorf("got %q, want one line", got)
	}
	if got := oneLine([]byte(strings.Repeat("x", 1000))); len(got) != 303 {
		t.Errorf("%d bytes, want 300 and dots", len(got))
	}
}
