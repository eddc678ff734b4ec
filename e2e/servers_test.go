package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// server is a real LLM server, started when a test first needs it.
type server struct {
	name, model, kind string
	// launch starts it on a port.
	launch func(port int) (*process, error)
	// bytesPerToken is for servers that do not say how large their pool is: for
	// SmolLM2-135M, 30 layers of 3 KV heads of 64 in 16 bits, keys and values.
	bytesPerToken int
	// ready is a path that answers 200 once it serves.
	ready string
	// running counts its live requests, by its own word.
	running func(url string) int
	// decoded counts the tokens it has ever decoded, by its own word; "" where it
	// counts only answers that end.
	decoded string
	// quiet is the least time between two calls of running: llama.cpp notices a
	// caller that left only in a second without such calls.
	quiet time.Duration
	// gone is the longest it may take to stop for a caller that left.
	gone time.Duration

	once sync.Once
	p    *process
	url  string
	err  error
}

// servers are all of them; TestMain stops those that were started.
var servers = []*server{
	{
		name: "vllm", kind: "vllm", model: "tiny", ready: "/health", launch: launchVLLM,
		running: func(url string) int { return metric(get(url+"/metrics"), "vllm:num_requests_running") },
		decoded: "vllm:generation_tokens_total",
		quiet:   50 * time.Millisecond, gone: 20 * time.Second,
	},
	{
		name: "llamacpp", kind: "llamacpp", model: "smollm2", ready: "/health", launch: launchLlama,
		running: func(url string) int { return strings.Count(get(url+"/slots"), `"is_processing":true`) },
		quiet:   1600 * time.Millisecond, gone: 30 * time.Second, bytesPerToken: 30 * 3 * 64 * 2 * 2,
	},
}

// full is set once a test has asked for the environment with real servers.
var full string

func launchVLLM(port int) (*process, error) {
	model := filepath.Join(shared.dir, "tiny")
	if out, err := exec.Command("nice", full, "../scripts/make_tiny_llama.py", model).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make_tiny_llama: %w\n%s", err, out)
	}
	env := []string{"HF_HUB_OFFLINE=1", "VLLM_CPU_KVCACHE_SPACE=1", "VLLM_NO_USAGE_STATS=1", "VLLM_SERVER_DEV_MODE=1", "OMP_NUM_THREADS=1", "VLLM_CPU_OMP_THREADS_BIND=nobind"}
	return start("vllm", env, nil, full, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "tiny",
		"--host", "127.0.0.1", "--port", strconv.Itoa(port), "--max-model-len", "2048", "--enforce-eager", "--max-num-seqs", "32", "--dtype", "bfloat16")
}

func launchLlama(port int) (*process, error) {
	return start("llamacpp", nil, nil, full, "scripts/llama_server.py", strconv.Itoa(port))
}

// up starts the server, once, and gives its address.
func (s *server) up(t *testing.T) string {
	t.Helper()
	full = python(t, "LULL_TEST_PYTHON_FULL", "full")
	s.once.Do(func() {
		port := freePort()
		s.url = fmt.Sprintf("http://127.0.0.1:%d", port)
		began := time.Now()
		if s.p, s.err = s.launch(port); s.err == nil {
			s.err = until(s.p, 8*time.Minute, 200*time.Millisecond, func() bool { return get(s.url+s.ready) != "" || s.healthy() })
		}
		fmt.Printf("e2e: %s: started in %v: %v\n", s.name, time.Since(began).Round(time.Second), s.err)
	})
	if s.err != nil {
		t.Fatalf("%s did not start: %v\n%s", s.name, s.err, s.tail())
	}
	return s.url
}

// healthy is for servers whose health has an empty body.
func (s *server) healthy() bool { return strings.Contains(get(s.url+"/v1/models"), `"`+s.model+`"`) }

func (s *server) tail() string {
	if s.p == nil {
		return ""
	}
	return s.p.tail()
}

func (s *server) stop() {
	if s.p != nil {
		s.p.stop()
	}
}

// metric is the sum of a metric's series, -1 without any.
func metric(text, name string) int {
	total, found := 0.0, false
	for _, m := range regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(name)+`(?:\{[^}]*\})? (\S+)$`).FindAllStringSubmatch(text, -1) {
		v, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return -1
		}
		total, found = total+v, true
	}
	if !found {
		return -1
	}
	return int(total)
}

// each runs a test against every server.
func each(t *testing.T, test func(t *testing.T, s *server)) {
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) { test(t, s) })
	}
}
