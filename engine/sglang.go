package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	dto "github.com/prometheus/client_model/go"
)

// SGLang's metrics, which it publishes with --enable-metrics only.
const (
	sglangPrefix    = "sglang:"
	sglangUsage     = "sglang:token_usage"          // of the fullest pool: full, sliding window or state
	sglangPool      = "sglang:max_total_num_tokens" // constant from the start
	sglangRunning   = "sglang:num_running_reqs"
	sglangWaiting   = "sglang:num_queue_reqs"
	sglangRetracted = "sglang:num_retracted_requests_total"
	sglangPage      = "sglang:page_size"
	sglangContext   = "sglang:context_len"
	sglangGenerated = "sglang:generation_tokens_total"
	sglangNoMetrics = "SGLang publishes no metrics (--enable-metrics): use and requests are unknown"
	sglangSaverNote = "the memory saver is on; Lull does not use it: a release or a resume at the wrong moment ends the server (docs/ENGINES.md)"
	sglangInfoPath  = "/server_info"
	sglangInfoOld   = "/get_server_info"
)

// sglang is an SGLang: its pool is allocated at start, so it is static. One
// reading is GET /metrics, and its server info once after each start.
type sglang struct {
	*client
	cfg      Config
	twins    twins
	prefixes sglangPrefixes

	mu    sync.Mutex
	asked bool
	info  sglangInfo
}

// sglangInfo is the part of the server's info that is read.
type sglangInfo struct {
	Version     string `json:"version"`
	ModelPath   string `json:"model_path"`
	Served      string `json:"served_model_name"`
	PoolTokens  int    `json:"max_total_num_tokens"`
	ContextLen  int    `json:"context_length"`
	PageSize    int    `json:"page_size"`
	MemorySaver bool   `json:"enable_memory_saver"`
}

func newSGLang(c Config) *sglang { return &sglang{client: newClient(c), cfg: c} }

// Capabilities: the logical use of a static pool.
func (e *sglang) Capabilities() Capabilities {
	return Capabilities{Kind: KindSGLang, ObserveLogical: true, Static: true, Preempts: true}
}

// Observe reads the pool's logical use and the queue.
func (e *sglang) Observe(ctx context.Context) (Sample, error) {
	e.renew()
	info, err := e.serverInfo(ctx)
	if err != nil {
		return Sample{}, err
	}
	s := staticSample(e.cfg, e.now())
	if info.MemorySaver {
		s.Note = sglangSaverNote
	}
	f, err := e.metrics(ctx, sglangPrefix)
	switch {
	case err != nil && unlessOff(err) == nil:
		s.Note = joinNotes(sglangNoMetrics, s.Note)
		s.MaxModelLen, s.BlockTokens = info.ContextLen, max(s.BlockTokens, info.PageSize)
		s.setPool(info.PoolTokens)
		return s, nil
	case err != nil:
		e.forget(err)
		return Sample{}, err
	}
	tokens, err := sglangSample(&s, f)
	if err == nil {
		err = e.prefixes.counts(&s, f)
	}
	if err == nil {
		var other bool
		if other, err = e.twins.see(sglangIdentity(f), s.At); other {
			e.forget(nil)
		}
	}
	if err != nil {
		return Sample{}, fmt.Errorf("engine %s: %s/metrics: %w", e.name, e.base, err)
	}
	usage := s.UsageFrac
	s.setPool(max(tokens, min(info.PoolTokens, tokensMost)))
	s.setUsage(usage)
	s.MaxModelLen = max(s.MaxModelLen, info.ContextLen)
	if e.cfg.BlockTokens > 0 {
		s.BlockTokens = e.cfg.BlockTokens
	}
	return s, nil
}

// tokensMost is above any pool: more is no server's own number.
const tokensMost = 1 << 40

// sglangSample adds what SGLang's metrics say to s and returns the pool's tokens.
func sglangSample(s *Sample, f families) (tokens int, err error) {
	read := func(name string, how func(a, b float64) float64) (v float64) {
		if err == nil {
			v, err = f.perRank(name, how)
		}
		return v
	}
	for _, must := range []string{sglangUsage, sglangRunning, sglangWaiting} {
		if len(f[must].GetMetric()) == 0 {
			return 0, fmt.Errorf("got no %s; the server may have renamed or switched off its metrics", must)
		}
	}
	usage := read(sglangUsage, largest)
	running, waiting := read(sglangRunning, plus), read(sglangWaiting, plus)
	retracted, pool := read(sglangRetracted, plus), read(sglangPool, plus)
	page, context := read(sglangPage, largest), read(sglangContext, largest)
	switch {
	case err != nil:
		return 0, err
	case usage > 1:
		return 0, fmt.Errorf("%s: got %v, want a fraction in [0, 1]", sglangUsage, usage)
	case pool > tokensMost || page > tokensMost || context > tokensMost:
		return 0, fmt.Errorf("%s, %s, %s: got %v, %v, %v tokens, want a server's own numbers", sglangPool, sglangPage, sglangContext, pool, page, context)
	}
	s.UsageFrac = usage
	s.Running, s.Waiting, s.Preemptions = int(running), int(waiting), uint64(retracted)
	s.BlockTokens, s.MaxModelLen = max(s.BlockTokens, int(page)), int(context)
	return int(pool), nil
}

func largest(a, b float64) float64 { return max(a, b) }
func plus(a, b float64) float64    { return a + b }

// perRank reads a gauge that every tensor- and pipeline-parallel rank publishes
// alike: the largest of those, joined by how over the data-parallel ones. Beside
// the series of each priority stands one of all, which is the largest.
func (f families) perRank(name string, how func(a, b float64) float64) (float64, error) {
	ranks := map[string]float64{}
	var order []string
	for _, m := range f[name].GetMetric() {
		v, err := count(name, m)
		if err != nil {
			return 0, err
		}
		key := rankKey(m)
		if _, ok := ranks[key]; !ok {
			order = append(order, key)
		}
		ranks[key] = max(ranks[key], v)
	}
	total := 0.0
	for _, key := range order {
		total = how(total, ranks[key])
	}
	return total, nil
}

// rankKey names a series without the ranks that work on the same requests.
func rankKey(m *dto.Metric) string {
	var key strings.Builder
	for _, p := range m.GetLabel() {
		switch p.GetName() {
		case "tp_rank", "pp_rank", "moe_ep_rank", "priority":
			continue
		}
		fmt.Fprintf(&key, "%q=%q ", p.GetName(), p.GetValue())
	}
	return key.String()
}

// sglangIdentity tells one SGLang from another.
func sglangIdentity(f families) identity {
	pool, _ := f.perRank(sglangPool, plus)
	tokens, _ := f.perRank(sglangGenerated, plus)
	models := map[string]bool{}
	name := ""
	for _, l := range f.labels(sglangRunning) {
		if m := l["model_name"]; !models[m] {
			models[m] = true
			name += m + " "
		}
	}
	return identity{name: fmt.Sprintf("%sof %.0f tokens", name, pool), counter: tokens}
}

// serverInfo asks once after each start; a server that does not say it is not
// asked again until it was gone.
func (e *sglang) serverInfo(ctx context.Context) (sglangInfo, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.asked {
		return e.info, nil
	}
	info, err := askSGLang(ctx, e.client)
	if errors.Is(err, ErrUnreachable) || errors.Is(err, ErrNotReady) || ctx.Err() != nil {
		return sglangInfo{}, err
	}
	e.asked, e.info = true, info // without it the metrics alone have to do
	return info, nil
}

// askSGLang reads the server's info by its name and by its older one.
func askSGLang(ctx context.Context, c *client) (info sglangInfo, err error) {
	for _, path := range []string{sglangInfoPath, sglangInfoOld} {
		info = sglangInfo{}
		if err = c.getJSON(ctx, path, &info); err == nil && (info.PoolTokens > 0 || info.ModelPath != "") {
			return info, nil
		}
		if err != nil && statusOf(err) != http.StatusNotFound {
			return sglangInfo{}, err
		}
	}
	return sglangInfo{}, err
}

func (e *sglang) forget(err error) {
	e.twins.missed(err)
	e.mu.Lock()
	e.asked = false
	e.mu.Unlock()
}

// joinNotes puts sentences after each other.
func joinNotes(notes ...string) string {
	var some []string
	for _, n := range notes {
		if n != "" {
			some = append(some, n)
		}
	}
	return strings.Join(some, "; ")
}
