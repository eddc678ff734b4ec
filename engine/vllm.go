package engine

import (
	"context"
	"fmt"
	"strconv"
	"strings"

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
	vllmPrompt      = "vllm:prompt_tokens" // with _total, and with _created when it was made
)

// vllm is a stock vLLM: its pool is allocated at start, so it is static. One
// reading is GET /metrics, and GET /v1/models once after each start.
type vllm struct {
	*client
	cfg    Config
	length modelLength
	twins  twins
}

func newVLLM(c Config) *vllm { return &vllm{client: newClient(c), cfg: c} }

// Capabilities: the logical use of a static pool.
func (e *vllm) Capabilities() Capabilities {
	return Capabilities{Kind: KindVLLM, ObserveLogical: true, Static: true, Preempts: true}
}

// Observe reads the pool's logical use and the queue.
func (e *vllm) Observe(ctx context.Context) (Sample, error) {
	s, _, err := e.read(ctx)
	return s, err
}

// read is Observe with the families that it was read from, more of them where
// asked for.
func (e *vllm) read(ctx context.Context, more ...string) (Sample, families, error) {
	e.renew()
	f, err := e.metrics(ctx, append([]string{vllmUsage, vllmUsageOld, vllmRunning, vllmWaiting, vllmPreemptions, vllmCache, vllmPrompt, vllmPrefixes}, more...)...)
	if err != nil {
		e.length.forget()
		e.twins.missed(err)
		return Sample{}, nil, err
	}
	s := staticSample(e.cfg, e.now())
	if err = vllmSample(&s, f); err == nil {
		var other bool
		if other, err = e.twins.see(vllmIdentity(f), s.At); other {
			e.length.forget()
		}
	}
	if err != nil {
		return Sample{}, nil, fmt.Errorf("engine %s: %s/metrics: %w", e.name, e.base, err)
	}
	s.MaxModelLen = e.length.of(ctx, e.client)
	return s, f, nil
}

// vllmIdentity tells one vLLM from another: what it serves and when its counters
// were made, with a counter that only rises.
func vllmIdentity(f families) identity {
	made, _, _ := f.sum(vllmPreemptions + "_created")
	tokens, _, _ := f.sum(vllmPrompt + "_total")
	model := ""
	for _, l := range f.labels(vllmRunning) {
		model += l["model_name"] + " "
	}
	blocks := ""
	for _, l := range f.labels(vllmCache) {
		blocks += l["num_gpu_blocks"] + " "
	}
	return identity{name: fmt.Sprintf("%sof %sblocks made at %.3f", model, blocks, made), counter: tokens}
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
	if err := vllmPrefixCounts(s, f); err != nil {
		return err
	}
	return vllmQueue(s, f)
}

// vllmQueue adds the requests that run and wait.
func vllmQueue(s *Sample, f families) error {
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
		if bytes > 0 && bytes <= segmentMost {
			pool += size.Bytes(bytes)
		}
		if s.BlockTokens == 0 {
			s.BlockTokens = block
		}
	}
	if s.Pool == 0 && s.BytesPerToken == 0 {
		s.Pool = pool
	}
	return tokens
}
