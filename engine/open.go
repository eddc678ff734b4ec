package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Open makes an Engine of the config's kind. For auto it asks the server what it
// is, which needs the server up: the error then wraps ErrUnreachable or
// ErrNotReady and the caller tries again. Other kinds open without a word to the
// server.
func Open(c Config) (Engine, error) {
	c = c.withDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Kind == KindAuto {
		kind, err := detect(context.Background(), newClient(c))
		if err != nil {
			return nil, err
		}
		c.Kind = kind
	}
	switch c.Kind {
	case KindEmulator:
		return newEmulator(c), nil
	case KindVLLM:
		return newVLLM(c), nil
	case KindLlamaCPP:
		return newLlamaCPP(c), nil
	case KindLullVLLM:
		return openLullVLLM(c)
	}
	return newOpenAI(c), nil
}

// Detect asks the server at url what kind it is: emulator, vllm, llamacpp, or
// openai for anything that lists its models. It cannot tell lull-vllm from vllm:
// that one is asked for by name.
func Detect(ctx context.Context, url string) (string, error) {
	c := DefaultConfig().withDefaults()
	c.Name, c.URL = "detect", strings.TrimRight(url, "/")
	if err := c.Validate(); err != nil {
		return "", err
	}
	return detect(ctx, newClient(c))
}

// detect goes from what only one kind has to what all have; it gives the
// client's connections back.
func detect(ctx context.Context, c *client) (string, error) {
	defer c.Close()
	var st emulatorState
	if err := c.getJSON(ctx, "/lull/state", &st); err == nil && st.PID > 0 {
		return KindEmulator, nil
	} else if errors.Is(err, ErrUnreachable) || errors.Is(err, ErrNotReady) {
		return "", fmt.Errorf("detect kind: %w", err)
	}
	a, err := c.get(ctx, "/v1/models")
	switch s := statusOf(err); {
	case s == http.StatusUnauthorized || s == http.StatusForbidden:
	case err != nil:
		return "", fmt.Errorf("detect kind: want an LLM server that lists its models: %w", err)
	}
	if a.header.Get("Server") == "llama.cpp" {
		return KindLlamaCPP, nil
	}
	if f, err := c.metrics(ctx, vllmUsage, vllmUsageOld, vllmCache); err == nil && len(f) > 0 {
		return KindVLLM, nil
	}
	if err == nil {
		var m modelList
		if err := c.decode("/v1/models", a.body, &m); err != nil {
			return "", fmt.Errorf("detect kind: %w", err)
		}
	}
	return KindOpenAI, nil
}
