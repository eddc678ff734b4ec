package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// ErrNoServer: something answered that is none of the servers that Lull knows.
// Detect and Probe wrap it.
var ErrNoServer = errors.New("no LLM server")

// Detect asks the server at url what kind it is; anything that lists its models
// and is nothing else is openai. It cannot tell lull-vllm and kvcached from vllm:
// those are asked for by name.
func Detect(ctx context.Context, url string) (string, error) {
	c := DefaultConfig().withDefaults()
	c.Name, c.URL = "detect", strings.TrimRight(url, "/")
	if err := c.Validate(); err != nil {
		return "", err
	}
	return detect(ctx, newClient(c))
}

// found is what a server was seen to be.
type found struct {
	kind, version string
	models        modelList
	modelsErr     error  // nobody without a key may read the list
	tried         string // paths and what they answered, for the error
}

// detect gives the client's connections back.
func detect(ctx context.Context, c *client) (string, error) {
	defer c.Close()
	f, err := look(ctx, c)
	if err != nil {
		return "", fmt.Errorf("detect kind: %w", err)
	}
	return f.kind, nil
}

// look goes from what only one kind has to what all have. No question changes
// anything.
func look(ctx context.Context, c *client) (found, error) {
	var f found
	var st emulatorState
	err := c.getJSON(ctx, "/lull/state", &st)
	if err == nil && st.PID > 0 {
		f.kind = KindEmulator
		f.models, f.modelsErr = c.models(ctx)
		return f, nil
	}
	if gone(ctx, err) {
		return f, err
	}
	f.note("/lull/state", err)
	a, err := c.get(ctx, "/v1/models")
	if gone(ctx, err) {
		return f, err
	}
	locked := statusOf(err) == http.StatusUnauthorized || statusOf(err) == http.StatusForbidden
	if err != nil && !locked {
		f.note("/v1/models", err)
		return lookElsewhere(ctx, c, f)
	}
	if !locked {
		if bad := c.decode("/v1/models", a.body, &f.models); bad != nil || f.models.Data == nil {
			f.note("/v1/models", bad)
			return lookElsewhere(ctx, c, f)
		}
	}
	f.modelsErr = err
	f.kind = KindOpenAI
	for _, ask := range []func(context.Context, *client, answer, *found) bool{isLlamaCPP, isVLLM, isSGLang, isTGI, isOllama} {
		if ask(ctx, c, a, &f) {
			break
		}
	}
	return f, ctx.Err()
}

// lookElsewhere knows the servers that have no list of models at OpenAI's path.
func lookElsewhere(ctx context.Context, c *client, f found) (found, error) {
	var v struct {
		Name, Version string
	}
	err := c.getJSON(ctx, "/v2", &v)
	if err == nil && strings.Contains(strings.ToLower(v.Name), "triton") {
		f.kind, f.version = KindTriton, v.Version
		f.models, f.modelsErr = c.tritonModels(ctx)
		return f, nil
	}
	if gone(ctx, err) {
		return f, err
	}
	f.note("/v2", err)
	if isSGLang(ctx, c, answer{}, &f) || isTGI(ctx, c, answer{}, &f) || isOllama(ctx, c, answer{}, &f) {
		return f, nil
	}
	if ctx.Err() != nil {
		return f, ctx.Err()
	}
	return f, fmt.Errorf("engine %s: %w at %s: got %s; want a server that lists its models at /v1/models, or Triton at /v2", c.name, ErrNoServer, c.base, f.tried)
}

// tritonModels lists the models that are loaded. The question is a POST all the
// same; servers may restrict it.
func (c *client) tritonModels(ctx context.Context) (list modelList, err error) {
	index, err := c.tritonIndex(ctx)
	for _, v := range index {
		if v.State == tritonReady {
			list.add(v.Name, 0)
		}
	}
	return list, err
}

// gone says that asking on is of no use.
func gone(ctx context.Context, err error) bool {
	return err != nil && (errors.Is(err, ErrUnreachable) || errors.Is(err, ErrNotReady) || ctx.Err() != nil)
}

// note keeps what a path answered.
func (f *found) note(path string, err error) {
	what := "another answer"
	var s *StatusError
	switch {
	case errors.As(err, &s):
		what = fmt.Sprint(s.Code)
	case err != nil:
		what = "no JSON"
	}
	if f.tried != "" {
		f.tried += ", "
	}
	f.tried += path + ": " + what
}

func isLlamaCPP(ctx context.Context, c *client, a answer, f *found) bool {
	if a.header.Get("Server") != "llama.cpp" {
		return false
	}
	f.kind = KindLlamaCPP
	var p struct {
		Build string `json:"build_info"`
	}
	_ = c.getJSON(ctx, "/props", &p) // only a version is lost
	f.version = p.Build
	return true
}

func isVLLM(ctx context.Context, c *client, _ answer, f *found) bool {
	if m, err := c.metrics(ctx, vllmUsage, vllmUsageOld, vllmCache); err != nil || len(m) == 0 {
		return false
	}
	f.kind, f.version = KindVLLM, c.version(ctx, "/version")
	return true
}

func isSGLang(ctx context.Context, c *client, _ answer, f *found) bool {
	info, err := askSGLang(ctx, c)
	if err != nil || info.PoolTokens <= 0 && info.ModelPath == "" {
		return false
	}
	f.kind, f.version = KindSGLang, info.Version
	return true
}

func isTGI(ctx context.Context, c *client, _ answer, f *found) bool {
	var info tgiInfo
	if err := c.getJSON(ctx, "/info", &info); err != nil || info.ModelID == "" || info.MaxTokens <= 0 {
		return false
	}
	f.kind, f.version = KindTGI, info.Version
	if len(f.models.Data) == 0 {
		f.models.add(info.ModelID, info.MaxTokens)
	}
	return true
}

func isOllama(ctx context.Context, c *client, _ answer, f *found) bool {
	v := c.version(ctx, "/api/version")
	if v == "" {
		return false
	}
	f.kind, f.version = KindOllama, v
	return true
}

// version asks for {"version": "..."}; empty where nobody says it.
func (c *client) version(ctx context.Context, path string) string {
	var v struct {
		Version string `json:"version"`
	}
	if c.getJSON(ctx, path, &v) != nil {
		return ""
	}
	return v.Version
}
