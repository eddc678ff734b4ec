package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sort"
	"strings"

	"github.com/lull-project/lull/endpoint"
)

// Triton's metrics, of the server and of the two backends that serve LLMs.
const (
	tritonPrefix    = "nv_inference_"
	tritonSuccess   = "nv_inference_request_success"
	tritonPending   = "nv_inference_pending_request_count"
	tritonPinned    = "nv_pinned_memory_pool_total_bytes" // also where no model is loaded
	tritonRTPrefix  = "nv_trt_llm_"
	tritonRTBlocks  = "nv_trt_llm_kv_cache_block_metrics" // by kv_cache_block_type
	tritonRTQueue   = "nv_trt_llm_request_metrics"        // by request_type
	tritonVLLM      = "vllm:prompt_tokens_total"          // with REPORT_CUSTOM_METRICS=true
	tritonPort      = "8002"
	tritonNoneNote  = "no backend of this server says how full its KV cache is: its use is predicted from the requests that pass"
	tritonVLLMNote  = "Triton's vLLM backend publishes no gauge of its KV cache: its use is predicted from the requests that pass"
	tritonQueueNote = "; running requests are unknown, waiting ones are those that Triton has not handed on"
)

// triton is NVIDIA's Triton server with the TensorRT-LLM or vLLM backend, whose
// pools are allocated at start. One reading is GET /metrics on its metrics port.
type triton struct {
	*client
	meter *client // of the metrics port
	cfg   Config
	twins twins
}

func newTriton(c Config) *triton {
	of := c
	of.URL, of.Key = c.metricsURL(), "" // the key is the server's alone
	return &triton{client: newClient(c), meter: newClient(of), cfg: c}
}

// Close drops idle connections to both ports.
func (e *triton) Close() error { return errors.Join(e.client.Close(), e.meter.Close()) }

// metricsURL is where the metrics are: Triton publishes them on a port of their
// own.
func (c Config) metricsURL() string {
	if c.MetricsURL != "" {
		return c.MetricsURL
	}
	at, _ := endpoint.Parse(c.URL) // Validate has parsed it
	u := at.URL()
	return u.Scheme + "://" + net.JoinHostPort(u.Hostname(), tritonPort)
}

// Capabilities: the logical use of a static pool, where the backend says it.
func (e *triton) Capabilities() Capabilities {
	return Capabilities{Kind: KindTriton, ObserveLogical: true, Static: true}
}

// Observe reads the metrics. A server that lives without them is not down.
func (e *triton) Observe(ctx context.Context) (Sample, error) {
	e.meter.renew()
	f, err := e.meter.metrics(ctx, tritonPrefix, tritonPinned, tritonRTPrefix, tritonVLLM)
	if err != nil {
		return Sample{}, e.blame(ctx, err)
	}
	s := staticSample(e.cfg, e.now())
	if err = tritonSample(&s, f); err == nil {
		_, err = e.twins.see(tritonIdentity(f), s.At)
	}
	if err != nil {
		return Sample{}, fmt.Errorf("engine %s: %s/metrics: %w", e.name, e.meter.base, err)
	}
	return s, e.leave(ctx, &s)
}

// leave leaves the bytes of the models that are loaded and unloaded to them: what the
// server itself has is what its process holds beyond those that are there.
func (e *triton) leave(ctx context.Context, s *Sample) error {
	if len(e.cfg.Models) == 0 {
		return nil
	}
	index, err := e.tritonIndex(ctx)
	if err != nil {
		return err
	}
	s.Pool, s.Bound, s.Needed, s.Held = 0, 0, 0, 0
	for _, m := range e.cfg.Models {
		state, err := tritonState(index, m.Name)
		if err != nil {
			return fmt.Errorf("engine %s: %s%s: %w", e.name, e.base, tritonIndexPath, err)
		}
		if state != "" {
			s.Held += m.Bytes
		}
	}
	s.Evictable = s.Held // in its own books nobody needs it
	return nil
}

// blame tells a dead server from a dead metrics port.
func (e *triton) blame(ctx context.Context, err error) error {
	e.twins.missed(err)
	if !errors.Is(err, ErrUnreachable) {
		return err
	}
	if _, dead := e.get(ctx, "/v2/health/live"); dead != nil {
		return dead
	}
	// Not wrapped: an engine that serves must not count as down.
	return fmt.Errorf("%v; Triton itself lives: give metrics_url, or start it with metrics (--allow-metrics, --metrics-port)", err)
}

// tritonSample adds what Triton's metrics say to s.
func tritonSample(s *Sample, f families) error {
	if len(f[tritonSuccess].GetMetric())+len(f[tritonPinned].GetMetric())+len(f[tritonRTBlocks].GetMetric())+len(f[tritonRTQueue].GetMetric()) == 0 {
		return fmt.Errorf("got no %s; want the metrics of Triton", tritonSuccess)
	}
	pending, _, err := f.sum(tritonPending)
	if err != nil {
		return err
	}
	s.Waiting = int(pending)
	if len(f[tritonRTBlocks].GetMetric()) == 0 {
		s.Note = tritonNoneNote + tritonQueueNote
		if len(f[tritonVLLM].GetMetric()) > 0 {
			s.Note = tritonVLLMNote + tritonQueueNote
		}
		return nil
	}
	return tensorRTSample(s, f)
}

// tensorRTSample adds the block manager's counts of every TensorRT-LLM model.
func tensorRTSample(s *Sample, f families) error {
	blocks, err := f.byType(tritonRTBlocks, "kv_cache_block_type")
	if err != nil {
		return err
	}
	var pool, used float64
	for model, b := range blocks {
		per, most, inUse := b["tokens_per"], b["max"], b["used"]
		switch {
		case per == 0 && most > 0:
			return fmt.Errorf("%s of %s: got max without tokens_per, want both", tritonRTBlocks, model)
		case inUse > most:
			return fmt.Errorf("%s of %s: got %v of %v blocks used, want at most all", tritonRTBlocks, model, inUse, most)
		}
		pool += per * most
		used += per * inUse
		s.BlockTokens = max(s.BlockTokens, int(min(per, tokensMost)))
	}
	if pool > tokensMost {
		return fmt.Errorf("%s: got a pool of %v tokens, want a server's own number", tritonRTBlocks, pool)
	}
	s.setPool(int(pool))
	if pool > 0 {
		s.setUsage(used / pool)
	}
	requests, err := f.byType(tritonRTQueue, "request_type")
	if err != nil {
		return err
	}
	running, waiting := 0.0, 0.0
	for _, r := range requests {
		running += r["scheduled"]
		if w, ok := r["waiting"]; ok {
			waiting += w
		} else { // before releases that say it
			waiting += max(0, r["active"]-r["scheduled"])
		}
	}
	s.Running, s.Waiting = int(running), s.Waiting+int(waiting)
	return nil
}

// byType splits a metric by one label, for each model and version.
func (f families) byType(name, label string) (map[string]map[string]float64, error) {
	out := map[string]map[string]float64{}
	for _, m := range f[name].GetMetric() {
		l := labelsOf(m)
		v, err := count(name, m)
		if err != nil {
			return nil, err
		}
		model := l["model"] + ":" + l["version"]
		if out[model] == nil {
			out[model] = map[string]float64{}
		}
		out[model][l[label]] = v
	}
	return out, nil
}

// tritonIdentity tells one Triton from another by its TensorRT-LLM pools; models
// come and go while one lives, and so do their counters.
func tritonIdentity(f families) identity {
	var pools []string
	for _, m := range f[tritonRTBlocks].GetMetric() {
		if l := labelsOf(m); l["kv_cache_block_type"] == "max" {
			pools = append(pools, fmt.Sprintf("%s with %.0f blocks", l["model"], value(m)))
		}
	}
	sort.Strings(pools)
	return identity{name: strings.Join(pools, ", ")}
}
