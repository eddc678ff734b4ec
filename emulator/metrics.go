package emulator

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// figures exports the engine's state under vLLM's names at each scrape.
type figures struct {
	engine *engine
	blocks float64 // in the whole pool
	list   []figure
}

type figure struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	labels []string
	value  func(State) float64
}

func newFigures(e *engine, cfg Config, labels prometheus.Labels) *figures {
	f := &figures{engine: e, blocks: float64(e.geometry.pages * e.geometry.blocksPerPage)}
	f.add(prometheus.GaugeValue, labels, "vllm:kv_cache_usage_perc", "Part of the KV cache that is in use, 0 to 1.",
		func(s State) float64 { return float64(s.stats.UsedBlocks) / f.blocks })
	f.add(prometheus.GaugeValue, labels, "vllm:num_requests_running", "Requests in the batch.",
		func(s State) float64 { return float64(s.Running) })
	f.add(prometheus.GaugeValue, labels, "vllm:num_requests_waiting", "Requests in the queue.",
		func(s State) float64 { return float64(s.Waiting) })
	f.add(prometheus.CounterValue, labels, "vllm:num_preemptions_total", "Preemptions.",
		func(s State) float64 { return float64(s.Preemptions) })
	f.add(prometheus.CounterValue, labels, "vllm:prompt_tokens_total", "Prompt tokens computed, without what was computed again.",
		func(s State) float64 { return float64(s.stats.PromptTokens) })
	f.add(prometheus.CounterValue, labels, "vllm:generation_tokens_total", "Tokens generated.",
		func(s State) float64 { return float64(s.stats.GeneratedTokens) })
	f.addFinished(labels)
	f.addCacheConfig(cfg, labels)
	return f
}

func (f *figures) add(kind prometheus.ValueType, labels prometheus.Labels, name, help string, value func(State) float64) {
	f.list = append(f.list, figure{desc: prometheus.NewDesc(name, help, nil, labels), kind: kind, value: value})
}

func (f *figures) addFinished(labels prometheus.Labels) {
	desc := prometheus.NewDesc("vllm:request_success_total", "Requests that ended, by reason.", []string{"finished_reason"}, labels)
	for reason, value := range map[string]func(State) float64{
		"stop":   func(s State) float64 { return float64(s.stats.FinishedStop) },
		"length": func(s State) float64 { return float64(s.stats.FinishedLength) },
		"abort":  func(s State) float64 { return float64(s.stats.Aborted) },
	} {
		f.list = append(f.list, figure{desc: desc, kind: prometheus.CounterValue, labels: []string{reason}, value: value})
	}
}

func (f *figures) addCacheConfig(cfg Config, labels prometheus.Labels) {
	g := cfg.geometry()
	blocks := g.pages * g.blocksPerPage
	names := []string{"block_size", "num_gpu_blocks", "kv_cache_memory_bytes", "kv_cache_size_tokens", "cache_dtype", "enable_prefix_caching"}
	values := []string{
		strconv.Itoa(cfg.BlockTokens), strconv.Itoa(blocks), strconv.FormatInt(int64(g.pool()), 10),
		strconv.Itoa(blocks * cfg.BlockTokens), "auto", "False",
	}
	f.list = append(f.list, figure{
		desc: prometheus.NewDesc("vllm:cache_config_info", "Information of the KV cache's configuration.", names, labels),
		kind: prometheus.GaugeValue, labels: values, value: func(State) float64 { return 1 },
	})
}

// Describe implements prometheus.Collector.
func (f *figures) Describe(ch chan<- *prometheus.Desc) {
	for _, x := range f.list {
		ch <- x.desc
	}
}

// Collect implements prometheus.Collector.
func (f *figures) Collect(ch chan<- prometheus.Metric) {
	s := f.engine.State()
	for _, x := range f.list {
		ch <- prometheus.MustNewConstMetric(x.desc, x.kind, x.value(s), x.labels...)
	}
}
