package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/lull-project/lull/endpoint"
	"github.com/lull-project/lull/size"
)

// maxBody is the most that is read of any answer. vLLM's metrics are ~150 KiB
// with one model; a page beyond this is not a server's own.
const maxBody = 8 * size.MiB

// client does the bounded HTTP exchanges of one engine.
type client struct {
	name, base string // base as the config spells it
	root       string // what stands in front of paths
	key        string // of the server at base
	timeout    time.Duration
	http       *http.Client
	now        func() time.Time
	ask        bool // every request asks whether it is a Lull that takes it

	renewMu   sync.Mutex
	renewedAt time.Time
}

// renewEvery is how old a kept connection may grow. Two servers that share a port
// (SO_REUSEPORT) are told apart by new connections only: a kept one stays with the
// server that took it. Shorter costs handshakes, longer finds a twin later.
const renewEvery = time.Second

// renew drops kept connections when they have grown old.
func (c *client) renew() {
	c.renewMu.Lock()
	defer c.renewMu.Unlock()
	if now := c.now(); now.Sub(c.renewedAt) >= renewEvery {
		c.renewedAt = now
		c.http.CloseIdleConnections()
	}
}

// newClient is for a valid config.
func newClient(c Config) *client {
	at, _ := endpoint.Parse(c.URL)
	rt := c.Transport
	if rt == nil {
		// Control traffic goes to the server itself: no proxy, few connections.
		own := &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute, DisableCompression: true}
		endpoint.NewDialer(at, c.TLS, c.Timeout).Use(own)
		rt = own
	}
	// A redirect would lead away from the server that the config names.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &client{name: c.Name, base: c.URL, root: at.Base(), key: c.Key, timeout: c.Timeout, now: c.Now, http: &http.Client{Transport: rt, CheckRedirect: stay}}
}

// Close drops idle connections.
func (c *client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// Name is the name in the config.
func (c *client) Name() string { return c.name }

// answer is a 200's header and whole body.
type answer struct {
	header http.Header
	body   []byte
}

// get reads path with at most maxBody bytes.
func (c *client) get(ctx context.Context, path string) (answer, error) {
	return c.do(ctx, http.MethodGet, path, nil)
}

// getJSON reads path into v.
func (c *client) getJSON(ctx context.Context, path string, v any) error {
	a, err := c.get(ctx, path)
	if err != nil {
		return err
	}
	return c.decode(path, a.body, v)
}

func (c *client) decode(path string, body []byte, v any) error {
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("engine %s: %s%s: got %s, want JSON: %w", c.name, c.base, path, start(body), err)
	}
	return nil
}

// do is one exchange; its error names the engine and the address.
func (c *client) do(ctx context.Context, method, path string, body []byte) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	a, err := c.exchange(ctx, method, path, body)
	if err != nil {
		return answer{}, fmt.Errorf("engine %s: %s %s%s: %w", c.name, strings.ToLower(method), c.base, path, err)
	}
	return a, nil
}

func (c *client) exchange(ctx context.Context, method, path string, body []byte) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.root+path, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	// The same order twice is one order, so net/http may send it again on a fresh
	// connection where a kept one was closed; a nil value says so without sending a
	// header.
	req.Header["Idempotency-Key"] = nil
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	if c.ask {
		req.Header.Set(AskHeader, "1")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return answer{}, c.unreachable(ctx, err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(io.LimitReader(resp.Body, int64(maxBody)+1))
	switch {
	case err != nil:
		return answer{}, c.unreachable(ctx, fmt.Errorf("answer broke off after %v: %w", size.Bytes(len(got)), err))
	case size.Bytes(len(got)) > maxBody:
		return answer{}, fmt.Errorf("got more than %v, want a server's own answer", maxBody)
	case resp.StatusCode != http.StatusOK:
		return answer{}, statusError(resp.StatusCode, got)
	}
	return answer{resp.Header, got}, nil
}

// unreachable marks an error of the transport; a caller that gave up is not the
// server's fault and stays what it is.
func (c *client) unreachable(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return err
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w within %v: %w", ErrUnreachable, c.timeout, err)
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}

// statusError reads what a server says of itself when it refuses: an OpenAI-shaped
// error, or one whose error is a text.
func statusError(status int, b []byte) *StatusError {
	var shaped struct {
		Error json.RawMessage `json:"error"`
	}
	var inner struct {
		Message string `json:"message"`
		Code    any    `json:"code"` // some have a number there
	}
	e := &StatusError{Code: status, Body: strings.Trim(start(b), `"`)}
	if json.Unmarshal(b, &shaped) != nil {
		return e
	}
	if json.Unmarshal(shaped.Error, &inner) != nil && json.Unmarshal(shaped.Error, &inner.Message) != nil {
		return e
	}
	e.Word, _ = inner.Code.(string)
	const most = 200
	if m := inner.Message; m != "" {
		e.Body = strings.ToValidUTF8(m[:min(len(m), most)], "")
	}
	return e
}

// start is the beginning of a body, for errors.
func start(b []byte) string {
	const most = 80
	t := strings.TrimSpace(string(b[:min(len(b), most)]))
	if len(b) > most {
		t += "..."
	}
	return fmt.Sprintf("%q", t)
}
