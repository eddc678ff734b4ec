package engine

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/lull-project/lull/size"
)

// vLLM's metrics. The second name of a pair is what older releases called it.
const (
	vllmUsage       = "vllm:kv_cache_usage_perc" // a fraction, in spite of its name
	vllmUsageOld    = "vllm:gpu_cache_usage_perc"
	vllmRunning     = "vllm:num_requests_running"
	vllmWaiting     = "vllm:num_requests_waiting" // and, as a prefix, its _by_reason
	vllmByReason    = "vllm:num_requests_waiting_by_reason"
	vllmPreemptions = "vllm:num_preemptions" // with _total in the text format
	vllmCache       = "vllm:cache_config_info"
)

// vllm is a stock vLLM: its pool is allocated at start, so it is static. One
// reading is GET /metrics, and GET /v1/models once after each start.
type vllm struct {
	*client
	cfg Config

	mu    sync.Mutex
	asked bool // the model's length was asked for since the server was last gone
	max   int
}

func newVLLM(c Config) *vllm { return &vllm{client: newClient(c), cfg: c} }

// Capabilities: the logical use of a static pool.
func (e *vllm) Capabilities() Capabilities {
	return Capabilities{Kind: KindVLLM, ObserveLogical: true, Static: true, Preempts: true}
}

// Observe reads the pool's logical use and the queue.
func (e *vllm) Observe(ctx context.Context) (Sample, error) {
	f, err := e.metrics(ctx, vllmUsage, vllmUsageOld, vllmRunning, vllmWaiting, vllmPreemptions, vllmCache)
	if err != nil {
		e.forget()
		return Sample{}, err
	}
	s := staticSample(e.cfg, e.now())
	if err := vllmSample(&s, f); err != nil {
		return Sample{}, fmt.Errorf("engine %s: %s/metrics: %w", e.name, e.base, err)
	}
	s.MaxModelLen = e.maxModelLen(ctx)
	return s, nil
}

// vllmSample adds what vLLM's metrics say to s.
func vllmSample(s *Sample, f families) error {
	s.setPool(vllmPool(s, f.labels(vllmCache)))
	usage, series, err := f.first(vllmUsage, vllmUsageOld)
	if err != nil {
		return err
	}
	usage /= float64(series) // data-parallel engines have pools of one size
	if usage > 1 {
		return fmt.Errorf("%s: got %v, want a fraction in [0, 1]", vllmUsage, usage)
	}
	s.setUsage(usage)
	running, _, err := f.first(vllmRunning)
	if err != nil {
		return err
	}
	waiting, _, err := f.first(vllmWaiting, vllmByReason)
	if err != nil {
		return err
	}
	preemptions, _, err := f.sum(vllmPreemptions + "_total")
	if err != nil {
		return err
	}
	s.Running, s.Waiting, s.Preemptions = int(running), int(waiting), uint64(preemptions)
	return nil
}

// vllmPool reads the pool's size in tokens, and in bytes where vLLM was started
// with a number of them, from the labels of its cache config: one set an engine.
func vllmPool(s *Sample, sets []map[string]string) (tokens int) {
	var pool size.Bytes
	for _, l := range sets {
		block, _ := strconv.Atoi(l["block_size"])
		blocks, _ := strconv.Atoi(l["num_gpu_blocks"]) // "None" on some releases: unknown
		n := block * blocks
		if n == 0 {
			n, _ = strconv.Atoi(strings.TrimSuffix(l["kv_cache_size_tokens"], ".0"))
		}
		if n < 0 || n > 1<<40 {
			n = 0 // no server's own number; an overflow must not become a pool
		}
		tokens += n
		bytes, _ := strconv.ParseInt(l["kv_cache_memory_bytes"], 10, 64)
		pool += size.Bytes(bytes)
		if s.BlockTokens == 0 {
			s.BlockTokens = block
		}
	}
	if s.Pool == 0 && s.BytesPerToken == 0 {
		s.Pool = max(pool, 0)
	}
	return tokens
}

// maxModelLen asks once; a server that does not say is not asked again until it
// was gone.
func (e *vllm) maxModelLen(ctx context.Context) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.asked {
		m, err := e.models(ctx)
		e.asked = err == nil || statusOf(err) != 0
		e.max = m.maxLen()
	}
	return e.max
}

func (e *vllm) forget() {
	e.mu.Lock()
	e.asked = false
	e.mu.Unlock()
}
