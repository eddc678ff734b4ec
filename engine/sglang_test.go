package engine

import (
	"errors"
	"strings"
	"testing"

	"github.com/lull-project/lull/size"
)

const sglangInfoBody = `{"model_path":"qwen/qwen2.5-0.5b-instruct","served_model_name":"qwen","max_total_num_tokens":20480,"context_length":null,` +
	`"page_size":1,"enable_memory_saver":false,"status":"ready","version":"0.5.15","internal_states":[{}]}`

func TestSGLangIsAStaticPoolWhoseRanksAreOne(t *testing.T) {
	e := open(t, Config{Kind: KindSGLang, BytesPerToken: size.KiB, URL: serve(t, routes{"/server_info": sglangInfoBody, "/metrics": read(t, "sglang.metrics")})})
	got, err := e.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := Sample{
		At: testTime, Pool: 20 * size.MiB, PoolTokens: 20480, Held: 20 * size.MiB, Bound: 20 * size.MiB, Needed: 5 * size.MiB, UsageFrac: 0.25,
		Running: 4, Waiting: 3, Preemptions: 7, BytesPerToken: size.KiB, BlockTokens: 1, MaxModelLen: 32768,
	}
	if got != want {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if c := e.Capabilities(); !c.Static || c.Bound || c.Kind != KindSGLang {
		t.Errorf("got %+v, want a static sglang", c)
	}
}

func TestSGLangAddsUpItsDataParallelRanks(t *testing.T) {
	const metrics = "sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"0\"} 2\nsglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"0\"} 3\n" +
		"sglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"1\"} 3\nsglang:num_queue_reqs 0\n" +
		"sglang:token_usage{dp_rank=\"0\"} 0.5\nsglang:token_usage{dp_rank=\"1\"} 0.75\n" +
		"sglang:max_total_num_tokens{dp_rank=\"0\"} 100\nsglang:max_total_num_tokens{dp_rank=\"1\"} 100\n"
	got, err := open(t, Config{Kind: KindSGLang, URL: serve(t, routes{"/metrics": metrics})}).Observe(t.Context())
	if err != nil || got.Running != 5 || got.PoolTokens != 200 || got.UsageFrac != 0.75 {
		t.Errorf("got %+v, %v, want 5 running over 200 tokens, the fullest rank at 0.75", got, err)
	}
}

func TestSGLangWithoutMetricsTellsItsPool(t *testing.T) {
	saver := strings.Replace(sglangInfoBody, `"enable_memory_saver":false`, `"enable_memory_saver":true`, 1)
	got, err := open(t, Config{Kind: KindSGLang, URL: serve(t, routes{"/get_server_info": saver})}).Observe(t.Context())
	const want = "SGLang publishes no metrics (--enable-metrics): use and requests are unknown; " +
		"the memory saver is on; Lull does not use it: a release or a resume at the wrong moment ends the server (docs/ENGINES.md)"
	if err != nil || got.UsageFrac != -1 || got.PoolTokens != 20480 || got.Note != want {
		t.Errorf("got %+v, %v, want the pool of the older path and the note %q", got, err, want)
	}
}

func TestSGLangSaysWhatIsWrongWithMetrics(t *testing.T) {
	const rest = "sglang:num_running_reqs 1\nsglang:num_queue_reqs 0\n"
	for name, c := range map[string]struct{ metrics, want string }{
		"renamed":   {"sglang:kv_usage 0.1\n" + rest, "/metrics: got no sglang:token_usage; the server may have renamed or switched off its metrics"},
		"no queue":  {"sglang:token_usage 0\nsglang:num_running_reqs 1\n", "got no sglang:num_queue_reqs; the server may have renamed"},
		"another":   {"vllm:kv_cache_usage_perc 0\n", "got no sglang:token_usage"},
		"NaN":       {"sglang:token_usage NaN\n" + rest, "sglang:token_usage: got NaN, want a number of 0 or more"},
		"percent":   {"sglang:token_usage 37\n" + rest, "sglang:token_usage: got 37, want a fraction in [0, 1]"},
		"negative":  {"sglang:token_usage 0\nsglang:num_running_reqs -1\nsglang:num_queue_reqs 0\n", "sglang:num_running_reqs: got -1, want a number of 0 or more"},
		"huge":      {"sglang:token_usage 0\nsglang:max_total_num_tokens 1e15\n" + rest, "got 1e+15, 0, 0 tokens, want a server's own numbers"},
		"immense":   {"sglang:token_usage 0\nsglang:max_total_num_tokens 1e300\n" + rest, "sglang:max_total_num_tokens: got 1e+300, want a server's own number"},
		"500":       {"500 boom", `/metrics: got 500 "boom", want 200`},
		"starting":  {"503 starting", `/metrics: got 503 "starting", want 200`},
		"HTML":      {"<html>", `got "<html>", want Prometheus's text format`},
		"bad value": {"sglang:token_usage many\n", "want Prometheus's text format: text format parsing error"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := open(t, Config{Kind: KindSGLang, URL: serve(t, routes{"/server_info": sglangInfoBody, "/metrics": c.metrics})}).Observe(t.Context())
			wantError(t, err, "engine main: ", c.want)
			if errors.Is(err, ErrUnreachable) || errors.Is(err, ErrNotReady) != (name == "starting") {
				t.Errorf("got %v, want ErrNotReady only while it starts", err)
			}
		})
	}
}
