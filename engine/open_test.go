package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lull-project/lull/endpoint"
)

func TestDetectTellsTheKinds(t *testing.T) {
	for want, r := range map[string]routes{
		KindEmulator: {"/lull/state": emulatorBody, "/v1/models": models, "/metrics": "vllm:kv_cache_usage_perc 0\n"},
		KindVLLM:     {"/v1/models": models, "/metrics": read(t, "vllm-0.32.0.metrics")},
		KindLlamaCPP: {"/v1/models": "llama " + models},
		KindSGLang:   {"/v1/models": models, "/get_server_info": sglangInfoBody},
		KindTriton:   {"/v2": `{"name":"triton","version":"2.51.0","extensions":["classification"]}`},
		KindTGI:      {"/v1/models": models, "/info": tgiInfoBody},
		KindOllama:   {"/v1/models": models, "/api/version": `{"version":"0.9.1"}`},
		KindOpenAI:   {"/v1/models": models, "/info": `{"model_id":"an embedding server's"}`},
	} {
		url := serve(t, r)
		if got, err := Detect(t.Context(), url+"/"); got != want || err != nil {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
		if e := open(t, Config{URL: url}); e.Capabilities().Kind != want {
			t.Errorf("open auto: got %q, want %q", e.Capabilities().Kind, want)
		}
	}
}

func TestDetectKnowsAVLLMBehindAKey(t *testing.T) {
	url := serve(t, routes{"/v1/models": "401 no", "/metrics": read(t, "vllm-0.32.0.metrics")})
	if got, err := Detect(t.Context(), url); got != KindVLLM || err != nil {
		t.Errorf("got %q, %v, want vllm", got, err)
	}
	e := open(t, Config{Kind: KindOpenAI, URL: url})
	if s, err := e.Observe(t.Context()); err != nil || s.UsageFrac != -1 {
		t.Errorf("got %+v, %v, want a live server of unknown memory", s, err)
	}
}

func TestDetectErrors(t *testing.T) {
	for name, c := range map[string]struct {
		r    routes
		want string
	}{
		"no LLM server": {routes{}, "got /lull/state: 404, /v1/models: 404, /v2: 404; want a server that lists its models at /v1/models, or Triton at /v2"},
		"a web page":    {routes{"/lull/state": "<html>", "/v1/models": "<html>", "/v2": "<html>"}, "detect kind: engine detect: no LLM server at http://"},
		"not a list":    {routes{"/v1/models": "{}"}, "got /lull/state: 404, /v1/models: another answer, /v2: 404; want a server that lists its models"},
		"broken":        {routes{"/v1/models": "500 boom", "/v2": "400 no"}, "got /lull/state: 404, /v1/models: 500, /v2: 400; want"},
		"loading":       {routes{"/lull/state": "503 Loading model"}, "detect kind: engine detect: get http://"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Detect(t.Context(), serve(t, c.r))
			wantError(t, err, c.want)
			if errors.Is(err, ErrNotReady) != (name == "loading") || errors.Is(err, ErrNoServer) == (name == "loading") {
				t.Errorf("got %v, want ErrNotReady while it loads and else ErrNoServer", err)
			}
		})
	}
	_, err := Open(t.Context(), Config{Name: "main", URL: "http://127.0.0.1:1"})
	wantError(t, err, "detect kind: engine main: get http://127.0.0.1:1/lull/state: no answer")
	if _, err := Detect(t.Context(), "a:1"); err == nil {
		t.Error("got no error for a url without a scheme")
	}
}

func TestOpenChecksItsConfig(t *testing.T) {
	for want, c := range map[string]Config{
		`engine: name: got "", want a name`: {URL: "http://a:1"},
		`engine main: kind: got "foo", want one of [auto emulator vllm vllm-sleep lull-vllm kvcached sglang triton llamacpp tgi ollama openai]`: {Name: "main", Kind: "foo", URL: "http://a:1"},
		`engine main: segment: got "kvcached_x", want the path of kvcached's segment, /dev/shm/ and its KVCACHED_IPC_NAME`:                      {Name: "main", Kind: KindKvcached, URL: "http://a:1", Segment: "kvcached_x"},
		`engine main: metrics_url: got "a:8002", want http://host:port, https://host:port or unix:///path/of/the/socket`:                        {Name: "main", Kind: KindTriton, URL: "http://a:1", MetricsURL: "a:8002"},
		`engine main: tls: got settings for "unix:///s", want them for an https address only`:                                                   {Name: "main", Kind: KindVLLM, URL: "unix:///s", TLS: endpoint.TLS{CA: "ca.pem"}},
		`engine main: url: got "a:1", want http://host:port, https://host:port or unix:///path/of/the/socket`:                                   {Name: "main", Kind: KindVLLM, URL: "a:1"},
		`engine main: timeout: got -1s, want more than 0`:                                                                                       {Name: "main", Kind: KindVLLM, URL: "http://a:1", Timeout: -time.Second},
		`engine main: pool, bytes_per_token, block_tokens: got -1B, 0B, 0, want 0 or more`:                                                      {Name: "main", Kind: KindVLLM, URL: "http://a:1", Pool: -1},
	} {
		_, err := Open(t.Context(), c)
		wantError(t, err, want)
	}
}

func TestACallerThatGivesUpIsNotADeadServer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := open(t, Config{Kind: KindOpenAI, URL: serve(t, routes{"/v1/models": models})}).Observe(ctx)
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnreachable) {
		t.Errorf("got %v, want the caller's own cancellation", err)
	}
}
