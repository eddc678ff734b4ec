package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Result is what a client saw of one request.
type Result struct {
	ID  string
	Due time.Time // when the schedule wanted it sent
	// Sent is just before the request was written; Tokens are the arrivals of
	// chunks with content.
	Sent   time.Time
	Tokens []time.Time
	End    time.Time
	// IDs are the answer's token ids, where the server says them.
	IDs []int
	// Err is why the answer is no good; nil for a whole answer.
	Err error
}

// TTFT is send to first content chunk; ok is false when none came.
func (r Result) TTFT() (d time.Duration, ok bool) {
	if len(r.Tokens) == 0 {
		return 0, false
	}
	return r.Tokens[0].Sub(r.Sent), true
}

// Gaps are the times between content chunks.
func (r Result) Gaps() []time.Duration {
	var gaps []time.Duration
	for i := 1; i < len(r.Tokens); i++ {
		gaps = append(gaps, r.Tokens[i].Sub(r.Tokens[i-1]))
	}
	return gaps
}

// client sends chat completions as streams and times them.
type client struct {
	http  *http.Client
	url   string
	model string
	// maxTokens is the limit that every request states.
	maxTokens int
	// endToken is the end token of a real server's model, "" for the emulator, which
	// is told how long an answer is. A real server may not end an answer before its
	// length, and then ends it at once: greedy, so that answers can be compared.
	endToken string
	// observe, if set, is called for every event of a request as it happens, from
	// the request's goroutine: arrive, first, token.
	observe func(kind, id string, at time.Time)
}

func newClient(url, model string, maxTokens int, endToken string) *client {
	return &client{
		url: url, model: model, maxTokens: maxTokens, endToken: endToken,
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}},
	}
}

// close ends idle connections.
func (c *client) close() { c.http.CloseIdleConnections() }

type chatBody struct {
	Model         string        `json:"model"`
	Messages      []chatMessage `json:"messages"`
	MaxTokens     int           `json:"max_tokens"`
	Stream        bool          `json:"stream"`
	StreamOptions streamOptions `json:"stream_options"`
	Emulate       *emulateBody  `json:"emulate,omitempty"`
	*realBody
}

// realBody fixes the length of a real server's answer, which the sidecar does
// not read.
type realBody struct {
	Temperature    float64            `json:"temperature"`
	MinTokens      int                `json:"min_tokens"`
	LogitBias      map[string]float64 `json:"logit_bias"`
	ReturnTokenIDs bool               `json:"return_token_ids"`
}

// body is the request as it is sent.
func (c *client) body(r Request) chatBody {
	b := chatBody{
		Model: c.model, Messages: []chatMessage{{Role: "user", Content: r.Prompt}}, MaxTokens: c.maxTokens,
		Stream: true, StreamOptions: streamOptions{IncludeUsage: true},
	}
	if c.endToken == "" {
		b.Emulate = &emulateBody{OutputTokens: r.OutputTokens}
	} else {
		b.realBody = &realBody{MinTokens: r.OutputTokens, LogitBias: map[string]float64{c.endToken: 100}, ReturnTokenIDs: true}
	}
	return b
}

type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type emulateBody struct {
	OutputTokens int `json:"output_tokens"`
}

// send performs one request; firstOnly leaves after the first content chunk.
func (c *client) send(ctx context.Context, r Request, due time.Time, firstOnly bool) Result {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	res := Result{ID: r.ID, Due: due}
	body, err := json.Marshal(c.body(r))
	if err != nil {
		res.Err = fmt.Errorf("encode request %s: %w", r.ID, err)
		return res
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		res.Err = fmt.Errorf("request %s: %w", r.ID, err)
		return res
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", r.ID)
	res.Sent = time.Now()
	c.see("arrive", r.ID, res.Sent)
	res.Err = c.receive(req, &res, firstOnly)
	res.End = time.Now()
	return res
}

// receive reads the answer into res.
func (c *client) receive(req *http.Request, res *Result, firstOnly bool) error {
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("request %s: %w", res.ID, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
		return fmt.Errorf("request %s: status %d, want 200: %s", res.ID, resp.StatusCode, bytes.TrimSpace(text))
	}
	done, err := readStream(resp.Body, func(ids []int) bool {
		now := time.Now()
		res.IDs = append(res.IDs, ids...)
		kind := "token"
		if len(res.Tokens) == 0 {
			kind = "first"
		}
		res.Tokens = append(res.Tokens, now)
		c.see(kind, res.ID, now)
		return !firstOnly
	})
	switch {
	case err != nil:
		return fmt.Errorf("request %s: after %d chunks: %w", res.ID, len(res.Tokens), err)
	case !done && !firstOnly:
		return fmt.Errorf("request %s: stream ended after %d chunks without [DONE]", res.ID, len(res.Tokens))
	case len(res.Tokens) == 0:
		return fmt.Errorf("request %s: answer without content", res.ID)
	}
	return nil
}

func (c *client) see(kind, id string, at time.Time) {
	if c.observe != nil {
		c.observe(kind, id, at)
	}
}

var (
	dataPrefix = []byte("data:")
	doneMark   = []byte("[DONE]")
)

// readStream reads server-sent events and calls content for each chunk that
// carries generated text or token ids, until [DONE], the end, or content
// answering false. done says that [DONE] was seen.
func readStream(r io.Reader, content func(ids []int) bool) (done bool, err error) {
	br := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := br.ReadSlice('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return false, fmt.Errorf("read stream: %w", err)
		}
		if data, ok := bytes.CutPrefix(bytes.TrimSpace(line), dataPrefix); ok {
			data = bytes.TrimSpace(data)
			if bytes.Equal(data, doneMark) {
				return true, nil
			}
			has, ids, bad := chunkContent(data)
			if bad != nil {
				return false, bad
			}
			if has && !content(ids) {
				return false, nil
			}
		}
		if err != nil {
			return false, nil
		}
	}
}

// chunkContent says whether an event carries generated text or token ids (those
// of random weights often decode to no text); an error event is an error.
func chunkContent(data []byte) (has bool, ids []int, err error) {
	var chunk struct {
		Choices []struct {
			Delta struct {
				Content string `json:"content"`
			} `json:"delta"`
			TokenIDs []int `json:"token_ids"`
		} `json:"choices"`
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(data, &chunk); err != nil {
		return false, nil, fmt.Errorf("event %.80q: %w, want a JSON chunk", data, err)
	}
	if len(chunk.Error) > 0 && !bytes.Equal(chunk.Error, []byte("null")) {
		return false, nil, fmt.Errorf("error event: %s", chunk.Error)
	}
	if len(chunk.Choices) == 0 {
		return false, nil, nil
	}
	c := chunk.Choices[0]
	return c.Delta.Content != "" || len(c.TokenIDs) > 0, c.TokenIDs, nil
}
