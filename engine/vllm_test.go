package engine

import (
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lull-project/lull/size"
)

const models = `{"object":"list","data":[{"id":"tiny","max_model_len":2048}]}`

// queue is the least that vLLM publishes of its queue.
const queue = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"

func TestVLLMReadsARealServersMetrics(t *testing.T) {
	e := open(t, Config{Kind: KindVLLM, PID: 7, URL: serve(t, routes{"/metrics": read(t, "vllm-0.32.0.metrics"), "/v1/models": models})})
	got, err := e.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := Sample{At: testTime, PID: 7, Pool: size.GiB, PoolTokens: 524288, Held: size.GiB, Bound: size.GiB, BytesPerToken: 2 * size.KiB, BlockTokens: 128, MaxModelLen: 2048}
	if got != want {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if c := e.Capabilities(); !c.Static || c.Bound || c.Kind != KindVLLM || e.Name() != "main" {
		t.Errorf("capabilities of %s: got %+v, want a static vllm", e.Name(), c)
	}
	if _, ok := e.(Bounder); ok {
		t.Error("a stock vLLM must not be a Bounder: its pool cannot move")
	}
}

func TestVLLMSamples(t *testing.T) {
	const info = `vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",kv_cache_memory_bytes="None",engine="%d"} 1` + "\n"
	one := fmt.Sprintf(info, 0)
	for name, c := range map[string]struct {
		cfg     Config
		metrics string
		want    Sample
	}{
		"pool from the bytes of a token": {Config{BytesPerToken: size.KiB}, one + "vllm:kv_cache_usage_perc 0.5\n" + queue,
			Sample{Pool: 16000 * size.KiB, PoolTokens: 16000, Held: 16000 * size.KiB, Bound: 16000 * size.KiB, Needed: 8000 * size.KiB, UsageFrac: 0.5, BytesPerToken: size.KiB, BlockTokens: 16}},
		"bytes of a token from the pool": {Config{Pool: 32000 * size.KiB}, one + "vllm:kv_cache_usage_perc 0.25\n" + queue,
			Sample{Pool: 32000 * size.KiB, PoolTokens: 16000, Held: 32000 * size.KiB, Bound: 32000 * size.KiB, Needed: 8000 * size.KiB, UsageFrac: 0.25, BytesPerToken: 2 * size.KiB, BlockTokens: 16}},
		"two data-parallel engines add up": {Config{BytesPerToken: size.KiB},
			one + fmt.Sprintf(info, 1) + "vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\nvllm:kv_cache_usage_perc{engine=\"1\"} 0\n" +
				"vllm:num_requests_running{engine=\"0\"} 2\nvllm:num_requests_running{engine=\"1\"} 3\nvllm:num_requests_waiting 0\nvllm:num_preemptions_total 4\n",
			Sample{Pool: 32000 * size.KiB, PoolTokens: 32000, Held: 32000 * size.KiB, Bound: 32000 * size.KiB, Needed: 8000 * size.KiB, UsageFrac: 0.25, Running: 5, Preemptions: 4, BytesPerToken: size.KiB, BlockTokens: 16}},
		"the older name, waiting by reason alone, no pool": {Config{},
			"vllm:gpu_cache_usage_perc 1\nvllm:num_requests_running 1\nvllm:num_requests_waiting_by_reason{reason=\"capacity\"} 2\nvllm:num_requests_waiting_by_reason{reason=\"deferred\"} 1\n",
			Sample{UsageFrac: 1, Running: 1, Waiting: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			c.cfg.Kind, c.cfg.URL = KindVLLM, serve(t, routes{"/metrics": c.metrics})
			got, err := open(t, c.cfg).Observe(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			c.want.At = testTime
			if got != c.want {
				t.Errorf("got %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestVLLMSaysWhatIsWrongWithMetrics(t *testing.T) {
	for name, c := range map[string]struct {
		metrics string
		want    []string
	}{
		"renamed":   {"vllm:kv_usage_ratio 0.1\n" + queue, []string{"engine main: http://", "/metrics: got no vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc; the server may have renamed or switched off its metrics"}},
		"no queue":  {"vllm:kv_cache_usage_perc 0.1\n", []string{"got no vllm:num_requests_running"}},
		"no wait":   {"vllm:kv_cache_usage_perc 0.1\nvllm:num_requests_running 1\n", []string{"got no vllm:num_requests_waiting or vllm:num_requests_waiting_by_reason"}},
		"empty":     {"", []string{"got no vllm:kv_cache_usage_perc"}},
		"NaN":       {"vllm:kv_cache_usage_perc NaN\n" + queue, []string{"vllm:kv_cache_usage_perc: got NaN, want a number of 0 or more"}},
		"infinite":  {"vllm:kv_cache_usage_perc +Inf\n" + queue, []string{"vllm:kv_cache_usage_perc: got +Inf, want"}},
		"percent":   {"vllm:kv_cache_usage_perc 37\n" + queue, []string{"vllm:kv_cache_usage_perc: got 37, want a fraction in [0, 1]"}},
		"negative":  {"vllm:kv_cache_usage_perc 0\nvllm:num_requests_running -1\nvllm:num_requests_waiting 0\n", []string{"vllm:num_requests_running: got -1, want a number of 0 or more"}},
		"HTML":      {"<!doctype html><title>Sign in</title>", []string{`got "<!doctype html><title>Sign in</title>", want Prometheus's text format; is this the server's own address?`}},
		"JSON":      {`{"error":"no"}`, []string{`got "{\"error\":\"no\"}", want Prometheus's text format`}},
		"cut off":   {"vllm:kv_cache_usage_perc{engine=\"0", []string{"want Prometheus's text format: text format parsing error in line 1"}},
		"bad value": {"vllm:kv_cache_usage_perc many\n", []string{"want Prometheus's text format: text format parsing error in line 1"}},
		"500":       {"500 boom", []string{"engine main: get http://", `/metrics: got 500 "boom", want 200`}},
		"redirect":  {"302 ", []string{`/metrics: got 302 "", want 200`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := open(t, Config{Kind: KindVLLM, URL: serve(t, routes{"/metrics": c.metrics})}).Observe(t.Context())
			wantError(t, err, c.want...)
			if errors.Is(err, ErrUnreachable) || errors.Is(err, ErrNotReady) {
				t.Errorf("got %v, want neither ErrUnreachable nor ErrNotReady: something answered", err)
			}
		})
	}
}

func TestSilentServerIsUnreachableAfterTheTimeout(t *testing.T) {
	release := make(chan struct{})
	url := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer close(release)
	_, err := open(t, Config{Kind: KindVLLM, URL: url, Timeout: 300 * time.Millisecond}).Observe(t.Context())
	wantError(t, err, "no answer within 300ms")
	if !errors.Is(err, ErrUnreachable) {
		t.Errorf("got %v, want it to wrap ErrUnreachable", err)
	}
}

func TestAnswerThatBreaksOffIsUnreachable(t *testing.T) {
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write([]byte("vllm:kv"))
	}))
	_, err := open(t, Config{Kind: KindVLLM, URL: url}).Observe(t.Context())
	wantError(t, err, "answer broke off after 7B", "unexpected EOF")
}

func TestVLLMAsksForTheModelOnceUntilTheServerWasGone(t *testing.T) {
	var asked, down atomic.Int64
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case down.Load() == 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path == "/v1/models":
			asked.Add(1)
			_, _ = w.Write([]byte(models))
		default:
			_, _ = w.Write([]byte("vllm:kv_cache_usage_perc 0\n" + queue))
		}
	}))
	e := open(t, Config{Kind: KindVLLM, URL: url})
	observe := func(wantErr bool) {
		t.Helper()
		if s, err := e.Observe(t.Context()); (err != nil) != wantErr || (err == nil && s.MaxModelLen != 2048) {
			t.Errorf("got %+v, %v, want error=%v and a model of 2048 tokens", s, err, wantErr)
		}
	}
	observe(false)
	observe(false)
	if asked.Load() != 1 {
		t.Errorf("asked for the models %d times, want once", asked.Load())
	}
	down.Store(1)
	observe(true)
	down.Store(0)
	observe(false)
	if asked.Load() != 2 {
		t.Errorf("asked for the models %d times, want again after the server was gone", asked.Load())
	}
}

func FuzzParseMetrics(f *testing.F) {
	f.Add([]byte(queue))
	f.Add([]byte("vllm:kv_cache_usage_perc NaN\n# TYPE vllm:kv_cache_usage_perc histogram\nvllm:kv_cache_usage_perc_bucket{le=\"1\"} 1"))
	f.Add([]byte("vllm:cache_config_info{block_size=\"-9\",num_gpu_blocks=\"99999999999999\"} 1"))
	f.Fuzz(func(t *testing.T, body []byte) {
		fam, err := parseMetrics(body, "vllm:")
		if err != nil {
			return
		}
		s := Sample{}
		if err := vllmSample(&s, fam); err == nil && (s.UsageFrac < 0 || s.UsageFrac > 1 || s.Held < 0 || s.Needed < 0 || s.Needed > s.Held) {
			t.Errorf("got %+v, want a usage in [0, 1] and 0 <= needed <= held", s)
		}
	})
}
