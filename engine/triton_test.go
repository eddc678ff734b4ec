package engine

import (
	"errors"
	"strings"
	"testing"

	"github.com/lull-project/lull/size"
)

func TestTritonReadsTensorRTLLMsBlocks(t *testing.T) {
	url := serve(t, routes{"/metrics": read(t, "triton-tensorrtllm.metrics")})
	e := open(t, Config{Kind: KindTriton, URL: "http://127.0.0.1:1", MetricsURL: url + "/", BytesPerToken: size.KiB})
	got, err := e.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const pool = 6240 * 64
	want := Sample{
		At: testTime, Pool: pool * size.KiB, PoolTokens: pool, Held: pool * size.KiB, Bound: pool * size.KiB, Needed: pool / 4 * size.KiB,
		UsageFrac: 0.25, Running: 4, Waiting: 4, BytesPerToken: size.KiB, BlockTokens: 64,
	}
	if got != want {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if c := e.Capabilities(); !c.Static || c.Bound || c.Kind != KindTriton {
		t.Errorf("got %+v, want a static triton", c)
	}
}

func TestTritonBeforeWaitingWasPublishedCountsTheUnscheduled(t *testing.T) {
	metrics := strings.ReplaceAll(read(t, "triton-tensorrtllm.metrics"), `nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 3`, "")
	got, err := open(t, Config{Kind: KindTriton, URL: "http://127.0.0.1:1", MetricsURL: serve(t, routes{"/metrics": metrics})}).Observe(t.Context())
	if err != nil || got.Running != 4 || got.Waiting != 1+3 {
		t.Errorf("got %+v, %v, want 4 running, 1 pending and 3 active but not scheduled", got, err)
	}
}

func TestTritonSaysThatItsVLLMBackendHasNoGauge(t *testing.T) {
	for file, want := range map[string]string{
		read(t, "triton-vllm.metrics"):   "Triton's vLLM backend publishes no gauge of its KV cache: its use is predicted from the requests that pass; running requests are unknown, waiting ones are those that Triton has not handed on",
		read(t, "triton-2.51.0.metrics"): "no backend of this server says how full its KV cache is: its use is predicted from the requests that pass; running requests are unknown",
	} {
		got, err := open(t, Config{Kind: KindTriton, URL: "http://127.0.0.1:1", MetricsURL: serve(t, routes{"/metrics": file})}).Observe(t.Context())
		if err != nil || got.UsageFrac != -1 || !strings.HasPrefix(got.Note, want) {
			t.Errorf("got %+v, %v, want unknown use and the note %q", got, err, want)
		}
	}
}

// TestTritonWithoutAModelIsRead: a running 2.51 publishes nothing of inference then.
func TestTritonWithoutAModelIsRead(t *testing.T) {
	const none = "nv_pinned_memory_pool_total_bytes 268435456\nnv_pinned_memory_pool_used_bytes 0\nnv_cpu_utilization 1\n"
	got, err := open(t, Config{Kind: KindTriton, URL: "http://127.0.0.1:1", MetricsURL: serve(t, routes{"/metrics": none})}).Observe(t.Context())
	if err != nil || got.Running+got.Waiting != 0 || got.UsageFrac != -1 {
		t.Errorf("got %+v, %v, want a server without requests", got, err)
	}
}

func TestTritonsMetricsAreOnPort8002OfItsHost(t *testing.T) {
	for url, want := range map[string]string{"http://gpu1:8000": "http://gpu1:8002", "https://[::1]:8000": "https://[::1]:8002", "http://gpu1": "http://gpu1:8002"} {
		if got := (Config{URL: url}).metricsURL(); got != want {
			t.Errorf("%s: got %s, want %s", url, got, want)
		}
	}
}

func TestTritonThatLivesWithoutMetricsIsNotDown(t *testing.T) {
	dead := unused(t)
	live := serve(t, routes{"/v2/health/live": ""})
	_, err := open(t, Config{Kind: KindTriton, URL: live, MetricsURL: dead}).Observe(t.Context())
	wantError(t, err, "engine main: get "+dead+"/metrics: no answer", "; Triton itself lives: give metrics_url, or start it with metrics (--allow-metrics, --metrics-port)")
	if errors.Is(err, ErrUnreachable) {
		t.Errorf("got %v, want no ErrUnreachable: the server serves", err)
	}
	_, err = open(t, Config{Kind: KindTriton, URL: dead, MetricsURL: dead}).Observe(t.Context())
	wantError(t, err, "engine main: get "+dead+"/v2/health/live: no answer")
	if !errors.Is(err, ErrUnreachable) {
		t.Errorf("got %v, want ErrUnreachable", err)
	}
}

func TestTritonSaysWhatIsWrongWithMetrics(t *testing.T) {
	const ok = "nv_inference_request_success 1\n"
	block := func(kind, value string) string {
		return `nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="` + kind + `",model="m",version="1"} ` + value + "\n"
	}
	for name, c := range map[string]struct{ metrics, want string }{
		"renamed":      {"nv_request_ok 1\n", "/metrics: got no nv_inference_request_success; want the metrics of Triton"},
		"HTML":         {"<html>", `got "<html>", want Prometheus's text format`},
		"NaN":          {ok + block("max", "NaN"), "nv_trt_llm_kv_cache_block_metrics: got NaN, want a number of 0 or more"},
		"NaN pending":  {ok + "nv_inference_pending_request_count NaN\n", "nv_inference_pending_request_count: got NaN"},
		"no tokens":    {ok + block("max", "9") + block("used", "1"), "nv_trt_llm_kv_cache_block_metrics of m:1: got max without tokens_per, want both"},
		"over full":    {ok + block("max", "9") + block("used", "10") + block("tokens_per", "64"), "got 10 of 9 blocks used, want at most all"},
		"huge":         {ok + block("max", "1e12") + block("tokens_per", "64"), "got a pool of 6.4e+13 tokens, want a server's own number"},
		"NaN requests": {ok + block("max", "9") + block("tokens_per", "64") + `nv_trt_llm_request_metrics{request_type="scheduled"} -1` + "\n", "nv_trt_llm_request_metrics: got -1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := open(t, Config{Kind: KindTriton, URL: "http://127.0.0.1:1", MetricsURL: serve(t, routes{"/metrics": c.metrics})}).Observe(t.Context())
			wantError(t, err, "engine main: ", c.want)
		})
	}
}
