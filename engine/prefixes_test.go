package engine

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The least that vLLM and SGLang publish.
const (
	vllmUsed   = "vllm:kv_cache_usage_perc 0\n" + queue
	sglangUsed = "sglang:token_usage 0\nsglang:num_running_reqs 0\nsglang:num_queue_reqs 0\n"
)

func TestPrefixCountersAreThoseOfTheServersMetrics(t *testing.T) {
	for name, c := range map[string]struct {
		kind, metrics string
		looked, found uint64
	}{
		"vLLM": {KindVLLM, vllmUsed + "# TYPE vllm:prefix_cache_queries counter\nvllm:prefix_cache_queries_total{engine=\"0\"} 5000\nvllm:prefix_cache_queries_created{engine=\"0\"} 1.7e9\n" +
			"vllm:prefix_cache_hits_total{engine=\"0\"} 4000\nvllm:prefix_cache_hits_created{engine=\"0\"} 1.7e9\nvllm:external_prefix_cache_hits_total 9\n", 5000, 4000},
		"data-parallel vLLM": {KindVLLM, vllmUsed + "vllm:prefix_cache_queries_total{engine=\"0\"} 5000\nvllm:prefix_cache_queries_total{engine=\"1\"} 100\n" +
			"vllm:prefix_cache_hits_total{engine=\"0\"} 4000\nvllm:prefix_cache_hits_total{engine=\"1\"} 20\n", 5100, 4020},
		"a vLLM without a prefix cache":   {KindVLLM, vllmUsed, 0, 0},
		"a vLLM that may count in blocks": {KindVLLM, vllmUsed + "vllm:gpu_prefix_cache_queries_total 50\nvllm:gpu_prefix_cache_hits_total 40\n", 0, 0},
		"more found than looked up":       {KindVLLM, vllmUsed + "vllm:prefix_cache_queries_total 10\nvllm:prefix_cache_hits_total 40\n", 10, 10},
		"SGLang, found in two places": {KindSGLang, sglangUsed + "sglang:prompt_tokens_total{model_name=\"m\"} 3000\n" +
			"sglang:cached_tokens_total{cache_source=\"device\",model_name=\"m\"} 1800\nsglang:cached_tokens_total{cache_source=\"host\",model_name=\"m\"} 400\n" +
			"sglang:cache_hit_rate{tp_rank=\"0\"} 0.1\n", 3000, 2200},
		"SGLang with the rate of its last batch": {KindSGLang, sglangUsed + "sglang:prompt_tokens_total 3000\n" +
			"sglang:cache_hit_rate{tp_rank=\"0\"} 0.25\nsglang:cache_hit_rate{tp_rank=\"1\"} 0.25\n", 3000, 750},
		"SGLang that counts nothing": {KindSGLang, sglangUsed, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := observe(t, open(t, Config{Kind: c.kind, URL: serve(t, routes{"/metrics": c.metrics, "/server_info": sglangInfoBody})}))
			if s.PrefixQueries != c.looked || s.PrefixHits != c.found || s.Cached != 0 {
				t.Errorf("got %d looked up, %d found, %v cached, want %d, %d and nothing known of a pool that gives nothing back", s.PrefixQueries, s.PrefixHits, s.Cached, c.looked, c.found)
			}
		})
	}
}

func TestPrefixCountersThatAreNoNumbersAreSaid(t *testing.T) {
	for want, c := range map[string]struct{ kind, metrics string }{
		"/metrics: vllm:prefix_cache_queries_total: got NaN, want a number of 0 or more": {KindVLLM, vllmUsed + "vllm:prefix_cache_queries_total NaN\n"},
		"/metrics: vllm:prefix_cache_hits_total: got -1, want a number of 0 or more":     {KindVLLM, vllmUsed + "vllm:prefix_cache_hits_total -1\n"},
		"/metrics: sglang:prompt_tokens_total: got NaN, want a number of 0 or more":      {KindSGLang, sglangUsed + "sglang:prompt_tokens_total NaN\n"},
		"/metrics: sglang:cached_tokens_total: got +Inf, want a number of 0 or more":     {KindSGLang, sglangUsed + "sglang:cached_tokens_total +Inf\n"},
		"/metrics: sglang:cache_hit_rate: got NaN, want a number of 0 or more":           {KindSGLang, sglangUsed + "sglang:cache_hit_rate NaN\n"},
		"/metrics: sglang:cache_hit_rate: got 37, want a fraction in [0, 1]":             {KindSGLang, sglangUsed + "sglang:cache_hit_rate 37\n"},
	} {
		_, err := open(t, Config{Kind: c.kind, URL: serve(t, routes{"/metrics": c.metrics, "/server_info": sglangInfoBody})}).Observe(t.Context())
		wantError(t, err, "engine main: ", want)
	}
}

// TestHitRatesAddUpAndBeginAnewWithTheServer holds the sum to a plain one.
func TestHitRatesAddUpAndBeginAnewWithTheServer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p sglangPrefixes
		looked, found := 0.0, 0.0
		for range rapid.IntRange(1, 30).Draw(t, "readings") {
			if rapid.IntRange(0, 5).Draw(t, "restart") == 0 && looked > 0 {
				looked, found = 0, 0
				p.integrate(0, 0.5) // a server that has begun, and looked nothing up yet
			}
			rate, more := float64(rapid.IntRange(0, 8).Draw(t, "rate"))/8, float64(rapid.IntRange(0, 1000).Draw(t, "more"))
			looked, found = looked+more, found+rate*more
			if got := p.integrate(looked, rate); got != found || got > looked {
				t.Fatalf("%v found of %v, want %v", got, looked, found)
			}
		}
	})
}

func TestACounterThatWentBackCountsFromItsOwnBeginning(t *testing.T) {
	var p sglangPrefixes
	p.integrate(1000, 1)
	if got := p.integrate(200, 0.5); got != 100 {
		t.Errorf("%v found, want 100: half of what the new server has looked up", got)
	}
}

func TestKvcachedCountsPrefixesByItsServer(t *testing.T) {
	r := newKVRig(t)
	r.more.Store("vllm:prefix_cache_queries_total 900\nvllm:prefix_cache_hits_total 600\n")
	p := startKVPeer(t, r.segment, kvPool)
	p.Do("alloc 3", "ok")
	observe(t, r.e) // a segment seen for the first time: what an idle server has in use is not known yet
	r.later()
	if got := observe(t, r.e); got.PrefixQueries != 900 || got.PrefixHits != 600 || got.Cached != got.Evictable || got.Cached != 3*kvPage {
		t.Errorf("got %d looked up, %d found, %v cached of %v evictable, want 900, 600 and 3 pages of 3 that no request needs", got.PrefixQueries, got.PrefixHits, got.Cached, got.Evictable)
	}
	r.more.Store("vllm:prefix_cache_queries_total NaN\n")
	r.later()
	_, err := r.e.Observe(t.Context())
	wantError(t, err, "/metrics: vllm:prefix_cache_queries_total: got NaN")
}

func TestKvcachedUnderSGLangAddsUpItsHitRates(t *testing.T) {
	var looked atomic.Int64
	looked.Store(100)
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			_, _ = io.WriteString(w, sglangUsed)
			fmt.Fprintf(w, "sglang:prompt_tokens_total %d\nsglang:cache_hit_rate 0.5\n", looked.Load())
			return
		}
		_, _ = io.WriteString(w, models)
	}))
	segment := filepath.Join(t.TempDir(), "kvcached_main")
	startKVMapped(t, segment, kvPool)
	now := testTime
	e := open(t, Config{Kind: KindKvcached, URL: url, Segment: segment})
	e.(*kvcached).now = func() time.Time { return now }
	for _, want := range []uint64{50, 150, 10} {
		if got := observe(t, e); got.PrefixHits != want {
			t.Errorf("%d found of %d, want %d", got.PrefixHits, got.PrefixQueries, want)
		}
		looked.Store(map[uint64]int64{50: 300, 150: 20}[want])
		now = now.Add(kvcachedQuiet)
	}
}
