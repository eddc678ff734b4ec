package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

const (
	// AskHeader on a request asks whether it is a Lull that takes it: one answers it
	// itself, on any path, with 421 and CodeOwnAddress. A server takes no notice.
	AskHeader = "X-Lull-Ask"
	// CodeOwnAddress is the code of that answer.
	CodeOwnAddress = "lull_own_address"
)

// ErrLull: it is a Lull that answers there, and not the server behind it. NotLull
// and Probe wrap it.
var ErrLull = errors.New("it is Lull's own address, want the LLM server's (engines[].url of that Lull's config)")

// NotLull returns an error that wraps ErrLull where a Lull answers at the
// config's URL. What it measured or read there would be its own relay's. Nothing is
// said of an address that does not answer at all.
func NotLull(ctx context.Context, c Config) error {
	c = c.withDefaults()
	if err := c.Validate(); err != nil {
		return err
	}
	ask := newClient(c)
	defer ask.Close()
	ask.ask = true
	_, err := ask.get(ctx, "/health")
	var s *StatusError
	if errors.As(err, &s) && s.Code == http.StatusMisdirectedRequest && s.Word == CodeOwnAddress {
		return fmt.Errorf("%s: %w", c.URL, ErrLull)
	}
	return nil
}
