package calibrate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/lull-project/lull/endpoint"
)

// Measured is one measured request.
type Measured struct {
	// Words and Answer are what was asked for, PromptTokens and OutputTokens what
	// the server counted.
	Words, Answer              int
	PromptTokens, OutputTokens int
	// TTFT is from just before the request is written to its first chunk with
	// content, E2E to its end.
	TTFT, E2E time.Duration
	Gaps      []time.Duration
}

// client sends one request at a time to the server under test.
type client struct {
	cfg  Config
	root string // what stands in front of paths
	http *http.Client
	now  func() time.Time
	draw *rand.Rand
	// plain leaves out what strict servers refuse: ignore_eos.
	plain bool
}

// newClient is for a valid config.
func newClient(cfg Config) *client {
	at, _ := endpoint.Parse(cfg.Upstream)
	// No proxy from the environment: what it would add is not the server's.
	own := &http.Transport{DisableCompression: true}
	endpoint.NewDialer(at, cfg.TLS, cfg.Limit).Use(own)
	return &client{
		cfg: cfg, root: at.Base(), now: time.Now, draw: rand.New(rand.NewPCG(cfg.Seed, 0)),
		http: &http.Client{Transport: own},
	}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// words are short and common, so that most tokenizers take one token for each
// with the blank before it.
var words = strings.Fields("the of and to in is was for that with on as are at be this have from or had by but some what there we can out other were all your when up use word how said an each she which do their time if will way about many then them would write like so these her long make thing see him two has look more day could go come did number sound no most people my over know water than call first who may down side been now find")

// prompt draws words in a random order, so that no prompt begins as another does
// and a prefix cache finds nothing.
func (c *client) prompt(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(words[c.draw.IntN(len(words))])
	}
	return b.String()
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type chatRequest struct {
	Model         string    `json:"model"`
	Messages      []message `json:"messages"`
	MaxTokens     int       `json:"max_tokens"`
	Temperature   int       `json:"temperature"`
	Stream        bool      `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	// IgnoreEOS makes vLLM, llama.cpp and SGLang answer in full length.
	IgnoreEOS bool `json:"ignore_eos,omitempty"`
}

func (c *client) body(words, answer int) ([]byte, error) {
	r := chatRequest{Model: c.cfg.Model, Messages: []message{{"user", c.prompt(words)}}, MaxTokens: answer, Stream: true, IgnoreEOS: !c.plain}
	r.StreamOptions.IncludeUsage = true
	return json.Marshal(r)
}

// statusError is an answer that is no answer.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string {
	hint := ""
	switch e.status {
	case http.StatusBadRequest:
		hint = " (a prompt too long for the model? --prompts and --answers set the lengths)"
	case http.StatusUnauthorized, http.StatusForbidden:
		hint = " (--api-key-env or --api-key-file says where the server's key is)"
	case http.StatusNotFound:
		hint = " (is --model one that the server has?)"
	}
	return fmt.Sprintf("got status %d, want 200%s: %s", e.status, hint, e.text)
}

// send measures one request; first is called at its first content.
func (c *client) send(ctx context.Context, words, answer int, first func()) (Measured, error) {
	m, err := c.exchange(ctx, words, answer, first)
	if err != nil {
		return Measured{}, fmt.Errorf("calibrate: request of %d words for %d tokens to %s: %w; nothing is written", words, answer, c.cfg.Upstream, err)
	}
	return m, nil
}

func (c *client) exchange(ctx context.Context, words, answer int, first func()) (Measured, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Limit)
	defer cancel()
	body, err := c.body(words, answer)
	if err != nil {
		return Measured{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.root+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return Measured{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	// A server that closed the kept connection just then (llama.cpp's does) has not
	// begun: net/http may send it again on a fresh one. A nil value says so without
	// sending a header.
	req.Header["Idempotency-Key"] = nil
	if c.cfg.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.cfg.Key)
	}
	sent := c.now()
	resp, err := c.http.Do(req)
	if err != nil {
		return Measured{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096)) // the status says enough
		return Measured{}, &statusError{resp.StatusCode, oneLine(text)}
	}
	got, err := readStream(resp.Body, c.now, first)
	if err != nil {
		return Measured{}, err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4096)) // so that the connection is used again
	return Measured{
		Words: words, Answer: answer, PromptTokens: got.prompt, OutputTokens: got.output,
		TTFT: got.contents[0].Sub(sent), E2E: c.now().Sub(sent), Gaps: got.gaps(),
	}, nil
}
