package engine

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// unused is an address where nobody listens.
func unused(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

// overHTTP are the kinds that ask a server, with a config for one at url.
func overHTTP(url string) map[string]Config {
	out := map[string]Config{}
	for _, k := range Kinds() {
		if k != KindAuto && k != KindLullVLLM {
			out[k] = Config{Kind: k, URL: url, MetricsURL: url, Segment: "/dev/shm/no such segment"}
		}
	}
	return out
}

// everywhere answers each path alike.
func everywhere(contentType, body string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, body)
	})
}

func TestEveryKindSaysThatItGotAWebPage(t *testing.T) {
	url := serve(t, everywhere("text/html; charset=utf-8", "<!doctype html><title>Sign in</title>"))
	for kind, c := range overHTTP(url) {
		_, err := open(t, c).Observe(t.Context())
		wantError(t, err, "engine main: "+url+"/", `got "<!doctype html><title>Sign in</title>", want `)
		if errors.Is(err, ErrUnreachable) || errors.Is(err, ErrNotReady) {
			t.Errorf("%s: got %v, want a server that is up", kind, err)
		}
	}
}

func TestEveryKindWithMetricsRefusesAWrongContentType(t *testing.T) {
	bodies := map[string]string{
		"/metrics": "x 1\n", "/info": tgiInfoBody, "/props": llamaPropsBody, "/slots": llamaSlotsBody, "/server_info": sglangInfoBody,
	}
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			w.Header().Set("Content-Type", "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily")
		}
		_, _ = io.WriteString(w, bodies[r.URL.Path])
	}))
	for _, kind := range []string{KindVLLM, KindSGLang, KindTriton, KindLlamaCPP, KindTGI, KindKvcached} {
		_, err := open(t, overHTTP(url)[kind]).Observe(t.Context())
		wantError(t, err, "engine main: "+url+`/metrics: got the content type "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily", want text/plain; is this the server's own address?`)
	}
}

func TestNoKindReadsAHundredMegabytes(t *testing.T) {
	line := []byte(strings.Repeat("x", 1<<20) + "\n")
	for kind := range overHTTP("http://a:1") {
		var sent atomic.Int64
		url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for range 100 {
				n, err := w.Write(line)
				sent.Add(int64(n))
				if err != nil {
					return
				}
			}
		}))
		_, err := open(t, overHTTP(url)[kind]).Observe(t.Context())
		wantError(t, err, "engine main: get "+url+"/", ": got more than 8.0MiB, want a server's own answer")
		if got := sent.Load(); got > 60<<20 {
			t.Errorf("%s: the server sent %d bytes, want the connection closed early", kind, got)
		}
	}
}

func TestEveryKindKnowsADeadServer(t *testing.T) {
	url := unused(t)
	for kind, c := range overHTTP(url) {
		_, err := open(t, c).Observe(t.Context())
		wantError(t, err, "engine main: get "+url+"/", "no answer", "connection refused")
		if !errors.Is(err, ErrUnreachable) {
			t.Errorf("%s: got %v, want it to wrap ErrUnreachable", kind, err)
		}
	}
}

func TestEveryKindKnowsAStartingServer(t *testing.T) {
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "Loading model", http.StatusServiceUnavailable)
	}))
	for kind, c := range overHTTP(url) {
		_, err := open(t, c).Observe(t.Context())
		wantError(t, err, "engine main: get "+url+"/", `got 503 "Loading model", want 200`)
		if !errors.Is(err, ErrNotReady) || errors.Is(err, ErrUnreachable) {
			t.Errorf("%s: got %v, want ErrNotReady and not ErrUnreachable", kind, err)
		}
	}
}

func TestTwinsAreToldFromARestart(t *testing.T) {
	type look struct {
		name    string
		counter float64
		after   time.Duration
		twins   bool
	}
	for name, looks := range map[string][]look{
		"one server":                        {{"a", 1, 0, false}, {"a", 2, time.Second, false}, {"a", 2, time.Second, false}},
		"restart":                           {{"a", 9, 0, false}, {"b", 0, time.Second, false}, {"b", 1, time.Second, false}},
		"restart of the same name":          {{"a", 9, 0, false}, {"a", 0, time.Second, false}, {"a", 1, time.Second, false}},
		"two, told by name":                 {{"a", 1, 0, false}, {"b", 1, time.Second, false}, {"a", 1, time.Second, true}, {"a", 1, time.Second, true}},
		"two, told by a counter":            {{"a", 9, 0, false}, {"a", 1, time.Second, false}, {"a", 9, time.Second, false}, {"a", 1, time.Second, true}},
		"two restarts long apart":           {{"a", 9, 0, false}, {"a", 1, time.Second, false}, {"a", 9, time.Second, false}, {"a", 1, twinWindow, false}},
		"one of two is gone for long":       {{"a", 1, 0, false}, {"b", 1, time.Second, false}, {"a", 1, time.Second, true}, {"a", 1, twinWindow, false}},
		"three restarts, none of them back": {{"a", 1, 0, false}, {"b", 1, time.Second, false}, {"c", 1, time.Second, false}},
	} {
		var tw twins
		now := testTime
		for i, l := range looks {
			now = now.Add(l.after)
			_, err := tw.see(identity{l.name, l.counter}, now)
			if (err != nil) != l.twins {
				t.Errorf("%s, look %d: error %v, want twins %v", name, i, err, l.twins)
			}
			if l.twins {
				wantError(t, err, `two servers answer there in turn, last "a"; give each a port of its own. Nothing grows until one of them has been silent for 30s`)
			}
		}
	}
}

func TestTwoServersOnOnePortAreFound(t *testing.T) {
	vllm := func(made string) string {
		return "vllm:kv_cache_usage_perc 0\nvllm:num_preemptions_created{engine=\"0\"} " + made + "\nvllm:num_requests_running{model_name=\"m\"} 0\nvllm:num_requests_waiting 0\n"
	}
	sglang := func(pool string) string {
		return "sglang:token_usage 0\nsglang:num_running_reqs{model_name=\"m\"} 0\nsglang:num_queue_reqs 0\nsglang:max_total_num_tokens " + pool + "\n"
	}
	triton := func(pool string) string {
		return "nv_inference_request_success 1\nnv_trt_llm_kv_cache_block_metrics{model=\"m\",kv_cache_block_type=\"max\"} " + pool + "\nnv_trt_llm_kv_cache_block_metrics{model=\"m\",kv_cache_block_type=\"tokens_per\"} 64\n"
	}
	for kind, bodies := range map[string][2]string{
		KindVLLM: {vllm("1.7e9"), vllm("1.8e9")}, KindSGLang: {sglang("1000"), sglang("2000")}, KindTriton: {triton("100"), triton("200")},
	} {
		t.Run(kind, func(t *testing.T) {
			url := servePair(t, bodies)
			now := testTime
			e, err := Open(t.Context(), Config{Name: "main", Kind: kind, URL: url, MetricsURL: url, Now: func() time.Time { return now }})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = Close(e) })
			var last error
			for range 3 {
				_, last = e.Observe(t.Context())
				now = now.Add(renewEvery)
			}
			wantError(t, last, "engine main: "+url+"/metrics: two servers answer there in turn")
			if errors.Is(last, ErrUnreachable) {
				t.Errorf("got %v, want servers that are up", last)
			}
		})
	}
}

// servePair gives each connection to one of two servers in turn, as the kernel may
// for two that bind one port with SO_REUSEPORT.
func servePair(t *testing.T, bodies [2]string) string {
	t.Helper()
	var mu sync.Mutex
	of := map[string]int{}
	return serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		n, ok := of[r.RemoteAddr]
		if !ok {
			n = len(of)
			of[r.RemoteAddr] = n
		}
		mu.Unlock()
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, bodies[n%2])
	}))
}

func TestARestartedVLLMIsAskedForItsModelAgain(t *testing.T) {
	var made atomic.Int64
	var asked atomic.Int64
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			asked.Add(1)
			_, _ = io.WriteString(w, models)
			return
		}
		fmt.Fprintf(w, "vllm:kv_cache_usage_perc 0\nvllm:num_preemptions_created %d\nvllm:num_preemptions_total 0\n%s", made.Load(), queue)
	}))
	e := open(t, Config{Kind: KindVLLM, URL: url})
	for i, want := range []int64{1, 1, 2, 2} {
		made.Store(int64(i / 2))
		if _, err := e.Observe(t.Context()); err != nil {
			t.Fatal(err)
		}
		if asked.Load() != want {
			t.Errorf("reading %d: asked %d times for the model, want %d", i, asked.Load(), want)
		}
	}
}

func FuzzEveryKindReadsAnyAnswer(f *testing.F) {
	for _, body := range []string{
		queue, sglangInfoBody, tgiInfoBody, ollamaPS, llamaPropsBody, emulatorBody, models,
		"sglang:token_usage 0.5\nsglang:num_running_reqs 1\nsglang:num_queue_reqs 0\nsglang:max_total_num_tokens 1e12\n",
		"nv_inference_request_success 1\nnv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\"} 9\nnv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"tokens_per\"} 64\n",
		"tgi_queue_size 1e300\ntgi_batch_current_max_tokens 5\n",
	} {
		f.Add([]byte(body), "text/plain")
	}
	f.Fuzz(func(t *testing.T, body []byte, contentType string) {
		rt := roundTrip(func(r *http.Request) *http.Response {
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {contentType}}, Body: io.NopCloser(strings.NewReader(string(body))), Request: r}
		})
		for kind, c := range overHTTP("http://a:1") {
			c.Name, c.Transport, c.BytesPerToken = "main", rt, 1<<10
			e, err := Open(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			s, err := e.Observe(t.Context())
			if err == nil && (s.Held < 0 || s.Needed < 0 || s.Needed > s.Held && kind != KindEmulator || s.UsageFrac > 1 && kind != KindEmulator || s.Running < 0 || s.Waiting < 0 || s.PoolTokens < 0) {
				t.Errorf("%s accepted %q as %+v", kind, body, s)
			}
		}
	})
}

type roundTrip func(*http.Request) *http.Response

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r), nil }
