package calibrate

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// received is what came of one answer.
type received struct {
	// contents are the arrivals of chunks with content.
	contents       []time.Time
	prompt, output int // tokens by usage
}

// chunk is the part of an event that is read.
type chunk struct {
	Choices []struct {
		Delta struct {
			Content          string `json:"content"`
			Reasoning        string `json:"reasoning"`
			ReasoningContent string `json:"reasoning_content"`
		} `json:"delta"`
	} `json:"choices"`
	Usage *struct {
		Prompt int `json:"prompt_tokens"`
		Output int `json:"completion_tokens"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

// content says that the chunk carries generated text: a role alone is none.
func (c chunk) content() bool {
	for _, x := range c.Choices {
		if x.Delta.Content+x.Delta.Reasoning+x.Delta.ReasoningContent != "" {
			return true
		}
	}
	return false
}

// maxLine is the longest event that is read.
const maxLine = 1 << 20

var (
	errNoDone  = errors.New("got the stream's end without data: [DONE], want a whole answer")
	errNoText  = errors.New("got an answer without content, want text; TTFT stops at the first of it")
	errNoUsage = errors.New("got no usage, want prompt_tokens in the last event (stream_options.include_usage); TTFT is fitted over them")
)

// readStream reads server-sent events until [DONE] and stamps those with content
// as they come; first is called at the first of them.
func readStream(r io.Reader, now func() time.Time, first func()) (received, error) {
	var got received
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	for lines.Scan() {
		payload, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok {
			continue // a comment, an event's name, an empty line
		}
		at := now()
		payload = bytes.TrimSpace(payload)
		if string(payload) == "[DONE]" {
			return got, got.check()
		}
		var c chunk
		if err := json.Unmarshal(payload, &c); err != nil {
			return got, fmt.Errorf("got the event %.80q, want JSON: %w", payload, err)
		}
		if len(c.Error) > 0 && string(c.Error) != "null" {
			return got, fmt.Errorf("got the error %.200s inside the stream, want an answer", c.Error)
		}
		if c.Usage != nil {
			got.prompt, got.output = max(got.prompt, c.Usage.Prompt), max(got.output, c.Usage.Output)
		}
		if c.content() {
			if got.contents = append(got.contents, at); len(got.contents) == 1 {
				first()
			}
		}
	}
	if err := lines.Err(); err != nil {
		return got, fmt.Errorf("the stream broke after %d chunks: %w", len(got.contents), err)
	}
	return got, errNoDone
}

func (r received) check() error {
	switch {
	case len(r.contents) == 0:
		return errNoText
	case r.prompt <= 0:
		return errNoUsage
	}
	return nil
}

// gaps are the times between chunks with content.
func (r received) gaps() []time.Duration {
	var out []time.Duration
	for i := 1; i < len(r.contents); i++ {
		out = append(out, r.contents[i].Sub(r.contents[i-1]))
	}
	return out
}

// oneLine shortens a server's text for an error.
func oneLine(text []byte) string {
	s := strings.Join(strings.Fields(string(text)), " ")
	if len(s) > 300 {
		s = s[:300] + "..."
	}
	return s
}
