package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// probe prints what is at url.
func probe(t *testing.T, cfg ProbeConfig) (string, Report, error) {
	t.Helper()
	r, err := Probe(t.Context(), cfg)
	if err != nil {
		return "", r, err
	}
	var b bytes.Buffer
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	return b.String(), r, nil
}

func probeConfig(t *testing.T, url string) ProbeConfig {
	c := DefaultProbe()
	c.URL, c.Shm = url, t.TempDir()
	return c
}

const staticText = "  read its bytes no\n  read its use   yes\n  bound them     no\n  take them back no\n  static         yes: the KV pool was allocated at start, and no byte of it moves\n"

func TestProbeTellsWhatEachServerIs(t *testing.T) {
	llama := strings.Replace(llamaPropsBody, `{`, `{"build_info":"b10434-abc",`, 1)
	for name, c := range map[string]struct {
		r    routes
		want []string
	}{
		"emulator": {routes{"/lull/state": emulatorBody, "/v1/models": models}, []string{
			": lull emulate (kind emulator)\n", "  models         tiny (at most 2048 tokens)\n", "  bound them     yes\n", "  static         no\n",
			"  lend the KV memory that requests are not expected to need, under a bound that it confirms\n", "    kind: emulator\n",
		}},
		"vllm": {routes{"/v1/models": models, "/metrics": read(t, "vllm-0.32.0.metrics"), "/version": `{"version":"0.32.0"}`}, []string{
			": vLLM 0.32.0 (kind vllm)\n", "  KV pool        1.0GiB, 524288 tokens, blocks of 128 tokens, 2.0KiB a token\n", "  longest        2048 tokens of prompt and answer\n",
			"  now            0 running, 0 waiting, 0.0% of the pool in use\n", staticText,
			"  lend nothing of its memory: it is static; training gets what stands beside it\n",
			"  the plugin lull-vllm (docs/VLLM.md) or kvcached (docs/ENGINES.md) makes its memory move; so does its own sleep mode, whole and in long lulls (kind vllm-sleep, docs/ENGINES.md)\n",
		}},
		"sglang": {routes{"/v1/models": models, "/server_info": sglangInfoBody, "/metrics": read(t, "sglang.metrics")}, []string{
			": SGLang 0.5.15 (kind sglang)\n", "  KV pool        20480 tokens, blocks of 1 tokens, bytes of a token unknown\n", "4 running, 3 waiting, 25.0% of the pool in use\n", staticText,
			"  kvcached (docs/ENGINES.md) makes its memory move\n", "    bytes_per_token: 0  # it does not say them; `lull forecast --geometry config.json` does\n",
		}},
		"llama.cpp": {routes{"/v1/models": "llama " + models, "/props": llama, "/slots": llamaSlotsBody, "/metrics": read(t, "llamacpp.metrics")}, []string{
			": llama.cpp b10434-abc (kind llamacpp)\n", "  KV pool        4096 tokens, bytes of a token unknown\n", "25.0% of the pool in use\n", staticText,
		}},
		"tgi": {routes{"/info": tgiInfoBody, "/metrics": "tgi_queue_size 0\n"}, []string{
			": text-generation-inference 2.4.1 (kind tgi)\n", "  models         TinyLlama/TinyLlama-1.1B-Chat-v1.0 (at most 2048 tokens)\n", "  KV pool        32000 tokens, bytes of a token unknown\n", "use unknown\n", staticText,
		}},
		"ollama": {routes{"/v1/models": models, "/api/version": `{"version":"0.9.1"}`, "/api/ps": ollamaPS}, []string{
			": Ollama 0.9.1 (kind ollama)\n", "  KV pool        unknown: the server does not say it\n", "  note           Ollama loads and unloads models by itself", "  read its use   no\n",
			"  lend nothing of its memory: it is static, and its use cannot be read; training gets what stands beside it\n",
		}},
		"openai": {routes{"/v1/models": `{"data":[{"id":"m","owned_by":"somebody"}]}`}, []string{
			": an OpenAI-compatible server (kind openai)\n", "  models         m\n", `  owned by       "somebody", by its list of models` + "\n", "  read its use   no\n",
		}},
		"openai behind a key": {routes{"/v1/models": "401 no"}, []string{"(kind openai)\n", "  models         not shown: the list is not for everybody (--api-key-env or --api-key-file gives the server's key)\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			url := serve(t, c.r)
			text, r, err := probe(t, probeConfig(t, url+"/"))
			if err != nil || r.Trouble != nil {
				t.Fatalf("errors %v, %v", err, r.Trouble)
			}
			want := append([]string{url + ": ", "what it lets Lull do\n", "what Lull would do with it\n  relay and measure its requests;", "lines for lull.yaml\n\nengines:\n  - name: main\n", fmt.Sprintf("    url: %q\n    devices: [host0]", url)}, c.want...)
			for _, w := range want {
				if !strings.Contains(text, w) {
					t.Errorf("no %q in\n%s", w, text)
				}
			}
		})
	}
}

func TestProbeOfTritonNamesItsMetricsPort(t *testing.T) {
	url := serve(t, routes{"/v2": `{"name":"triton","version":"2.51.0"}`, "/v2/health/live": ""})
	text, r, err := probe(t, probeConfig(t, url))
	if err != nil || r.Trouble == nil {
		t.Fatalf("errors %v, %v, want trouble with the metrics that are not at port 8002 here", err, r.Trouble)
	}
	for _, w := range []string{": Triton 2.51.0 (kind triton)\n", "  trouble        engine probe: get http://127.0.0.1:8002/metrics: ", "  nothing else: no training memory grows while it cannot be read, and /readyz says why\n",
		`    metrics_url: "http://127.0.0.1:8002"  # where its metrics are` + "\n"} {
		if !strings.Contains(text, w) {
			t.Errorf("no %q in\n%s", w, text)
		}
	}
}

func TestProbeReadsTritonsModelsAndMetrics(t *testing.T) {
	cfg := probeConfig(t, serve(t, routes{"/v2": `{"name":"triton","version":"2.51.0"}`, "/v2/repository/index": `[{"name":"llm","version":"1","state":"READY"},{"name":"old","version":"1","state":"UNLOADING"}]`}))
	cfg.MetricsURL = serve(t, routes{"/metrics": read(t, "triton-2.51.0.metrics")})
	text, r, err := probe(t, cfg)
	if err != nil || r.Trouble != nil {
		t.Fatalf("errors %v, %v", err, r.Trouble)
	}
	for _, w := range []string{"  models         llm\n", "  KV pool        unknown: the server does not say it\n", "  note           no backend of this server says how full its KV cache is",
		fmt.Sprintf("    metrics_url: %q  # where its metrics are\n", cfg.MetricsURL)} {
		if !strings.Contains(text, w) {
			t.Errorf("no %q in\n%s", w, text)
		}
	}
}

func TestProbeShowsTheElasticLayersOfThisMachine(t *testing.T) {
	cfg := probeConfig(t, serve(t, routes{"/v1/models": models, "/metrics": read(t, "vllm-0.32.0.metrics")}))
	pages := filepath.Join(cfg.Shm, fmt.Sprintf("lull-%d", os.Getuid()))
	if err := os.Mkdir(pages, 0o700); err != nil {
		t.Fatal(err)
	}
	startPeer(t, pages, modeHostPages)
	for name, raw := range map[string][]byte{"kvcached_main": rawSegment(1<<30, 1<<28, 0), "other": []byte("twenty-three bytes long"), "foreign": rawSegment(-1, 0, 0)} {
		if err := os.WriteFile(filepath.Join(cfg.Shm, name), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, r, err := probe(t, cfg)
	if err != nil || len(r.Beside) != 2 {
		t.Fatalf("got %v, %v, want a page and a segment", r.Beside, err)
	}
	for _, w := range []string{
		"/vllm.page: vLLM with lull-vllm, 1.0MiB mapped of at most 1.0MiB; it does not say which server it belongs to\n",
		"/kvcached_main: kvcached, 256.0MiB mapped of at most 1.0GiB; it does not say which server it belongs to\n",
		"# or, if this page is that server's:\n#   kind: lull-vllm\n#   page: " + pages + "/vllm.page\n",
		"# or, if its KVCACHED_IPC_NAME names this segment:\n#   kind: kvcached\n#   segment: " + cfg.Shm + "/kvcached_main\n",
	} {
		if !strings.Contains(text, w) {
			t.Errorf("no %q in\n%s", w, text)
		}
	}
}

func TestProbeSaysThatThereIsNone(t *testing.T) {
	dead := unused(t)
	web := serve(t, everywhere("text/html", "<html>hello</html>"))
	for name, c := range map[string]struct {
		url  string
		is   error
		want []string
	}{
		"nobody":     {dead, ErrUnreachable, []string{"engine probe: get " + dead + "/lull/state: no answer", "connection refused: is the server running, and is this its own address?"}},
		"a web page": {web, ErrNoServer, []string{"engine probe: no LLM server at " + web + ": got /lull/state: no JSON, /v1/models: no JSON, /v2: no JSON; want a server that lists its models at /v1/models, or Triton at /v2"}},
		"starting":   {serve(t, routes{"/lull/state": "503 loading"}), ErrNotReady, []string{`got 503 "loading", want 200: a server answers, and says that it is still starting; ask again when it is ready`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := probe(t, probeConfig(t, c.url))
			wantError(t, err, c.want...)
			if !errors.Is(err, c.is) {
				t.Errorf("got %v, want it to wrap %v", err, c.is)
			}
		})
	}
	for want, c := range map[string]ProbeConfig{
		`probe: url: got "a:1", want http://host:port, https://host:port or unix:///path/of/the/socket`:         {URL: "a:1", Timeout: 1},
		`probe: metrics-url: got "a:2", want http://host:port, https://host:port or unix:///path/of/the/socket`: {URL: "http://a:1", MetricsURL: "a:2", Timeout: 1},
		"probe: timeout: got 0s, want more than 0":                                                              {URL: "http://a:1"},
	} {
		_, err := Probe(t.Context(), c)
		wantError(t, err, want)
	}
}

func TestProbeOfAServerThatSaysNothingEnds(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"silent": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"drip": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil { // a byte a millisecond, for ever
				_, _ = w.Write([]byte(" "))
				_ = http.NewResponseController(w).Flush()
				select {
				case <-r.Context().Done():
				case <-time.After(time.Millisecond):
				}
			}
		},
		"answers once, then is silent": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/lull/state" {
				http.NotFound(w, r)
				return
			}
			<-r.Context().Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := probeConfig(t, serve(t, h))
			cfg.Timeout = 300 * time.Millisecond
			began := time.Now()
			_, _, err := probe(t, cfg)
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("took %v, want about the timeout", took)
			}
			wantError(t, err, "no answer within 300ms", "is the server running, and is this its own address?")
		})
	}
}

func TestProbeOfACallerThatGaveUpEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Probe(ctx, probeConfig(t, serve(t, routes{}))); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the caller's cancellation", err)
	}
}
