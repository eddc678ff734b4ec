package engine

import (
	"strings"
	"testing"

	"github.com/lull-project/lull/size"
)

const (
	tgiInfoBody = `{"model_id":"TinyLlama/TinyLlama-1.1B-Chat-v1.0","model_dtype":"float16","max_concurrent_requests":128,` +
		`"max_input_tokens":1024,"max_total_tokens":2048,"max_batch_total_tokens":32000,"version":"2.4.1"}`
	ollamaPS = `{"models":[{"name":"qwen3:8b","model":"qwen3:8b","size":6442450944,"size_vram":6442450944,"context_length":8192,"expires_at":"2099-01-01T00:00:00Z"}]}`
)

func TestTGIIsAStaticPoolOfBudgetedTokens(t *testing.T) {
	metrics := "tgi_batch_current_size 2\ntgi_queue_size 3\ntgi_batch_current_max_tokens 8000\n"
	e := open(t, Config{Kind: KindTGI, BytesPerToken: size.KiB, URL: serve(t, routes{"/info": tgiInfoBody, "/metrics": metrics})})
	got, err := e.Observe(t.Context())
	want := Sample{
		At: testTime, Pool: 32000 * size.KiB, PoolTokens: 32000, Held: 32000 * size.KiB, Bound: 32000 * size.KiB, Needed: 8000 * size.KiB,
		UsageFrac: 0.25, Running: 2, Waiting: 3, BytesPerToken: size.KiB, MaxModelLen: 2048,
	}
	if err != nil || got != want {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	if c := e.Capabilities(); !c.Static || c.Kind != KindTGI {
		t.Errorf("got %+v, want a static tgi", c)
	}
}

func TestTGIBeforeItsFirstBatchHasNoUse(t *testing.T) {
	for _, r := range []routes{{"/info": tgiInfoBody, "/metrics": "tgi_request_count 0\n"}, {"/info": tgiInfoBody}} {
		got, err := open(t, Config{Kind: KindTGI, URL: serve(t, r)}).Observe(t.Context())
		if err != nil || got.UsageFrac != -1 || got.PoolTokens != 32000 {
			t.Errorf("got %+v, %v, want the pool and unknown use", got, err)
		}
	}
}

func TestOllamaSaysWhatIsLoaded(t *testing.T) {
	e := open(t, Config{Kind: KindOllama, URL: serve(t, routes{"/api/ps": ollamaPS})})
	got, err := e.Observe(t.Context())
	if err != nil || got.MaxModelLen != 8192 || got.UsageFrac != -1 || !strings.HasSuffix(got.Note, "Loaded now: 1 models of 6.0GiB, weights and KV together") {
		t.Errorf("got %+v, %v, want the context and the bytes of the one model", got, err)
	}
	if c := e.Capabilities(); !c.Static || c.ObserveLogical || c.Kind != KindOllama {
		t.Errorf("got %+v, want a static ollama whose use cannot be seen", c)
	}
	if got, err := open(t, Config{Kind: KindOllama, URL: serve(t, routes{"/api/ps": `{"models":[]}`})}).Observe(t.Context()); err != nil || got.MaxModelLen != 0 {
		t.Errorf("nothing loaded: got %+v, %v, want a live server", got, err)
	}
}

func TestTGIAndOllamaSayWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		kind string
		r    routes
		want string
	}{
		"no limits":        {KindTGI, routes{"/info": `{"model_id":"m"}`}, "/info: got max_total_tokens 0 and max_batch_total_tokens 0, want TGI's own numbers"},
		"info is HTML":     {KindTGI, routes{"/info": "<html>"}, `/info: got "<html>", want JSON`},
		"info is gone":     {KindTGI, routes{}, "/info: got 404"},
		"metrics HTML":     {KindTGI, routes{"/info": tgiInfoBody, "/metrics": "<html>"}, `/metrics: got "<html>", want Prometheus's text format`},
		"metrics renamed":  {KindTGI, routes{"/info": tgiInfoBody, "/metrics": "x 1\n"}, "/metrics: got no tgi_...; the server may have renamed its metrics"},
		"metrics NaN":      {KindTGI, routes{"/info": tgiInfoBody, "/metrics": "tgi_queue_size NaN\n"}, "/metrics: tgi_queue_size: got NaN, want a number of 0 or more"},
		"metrics negative": {KindTGI, routes{"/info": tgiInfoBody, "/metrics": "tgi_batch_current_size -1\n"}, "/metrics: tgi_batch_current_size: got -1"},
		"no list":          {KindOllama, routes{"/api/ps": `{}`}, "/api/ps: got no models, want Ollama's list, empty or not"},
		"list is HTML":     {KindOllama, routes{"/api/ps": "<html>"}, `/api/ps: got "<html>", want JSON`},
		"bytes":            {KindOllama, routes{"/api/ps": `{"models":[{"name":"m","size":-1}]}`}, "/api/ps: got -1 bytes for m, want Ollama's own numbers"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := open(t, Config{Kind: c.kind, URL: serve(t, c.r)}).Observe(t.Context())
			wantError(t, err, "engine main: ", c.want)
		})
	}
}
