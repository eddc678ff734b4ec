package engine

import (
	"context"
	"fmt"
)

// TGI's metrics; a gauge is there once it was set.
const (
	tgiPrefix  = "tgi_"
	tgiRunning = "tgi_batch_current_size"
	tgiWaiting = "tgi_queue_size"
	tgiTokens  = "tgi_batch_current_max_tokens"
)

// tgi is Hugging Face's text-generation-inference: a static pool of
// max_batch_total_tokens. One reading is GET /info and GET /metrics.
type tgi struct {
	*client
	cfg Config
}

func newTGI(c Config) *tgi { return &tgi{newClient(c), c} }

// Capabilities: the budgeted use of a static pool.
func (e *tgi) Capabilities() Capabilities {
	return Capabilities{Kind: KindTGI, ObserveLogical: true, Static: true}
}

// tgiInfo is the part of GET /info that is read.
type tgiInfo struct {
	ModelID    string `json:"model_id"`
	Version    string `json:"version"`
	PoolTokens int    `json:"max_batch_total_tokens"`
	MaxTokens  int    `json:"max_total_tokens"`
}

// Observe reads the limits and the batch that runs.
func (e *tgi) Observe(ctx context.Context) (Sample, error) {
	var info tgiInfo
	if err := e.getJSON(ctx, "/info", &info); err != nil {
		return Sample{}, err
	}
	if info.MaxTokens <= 0 || info.PoolTokens < 0 || info.PoolTokens > tokensMost {
		return Sample{}, fmt.Errorf("engine %s: %s/info: got max_total_tokens %d and max_batch_total_tokens %d, want TGI's own numbers", e.name, e.base, info.MaxTokens, info.PoolTokens)
	}
	s := staticSample(e.cfg, e.now())
	s.MaxModelLen = info.MaxTokens
	s.setPool(info.PoolTokens)
	f, err := e.metrics(ctx, tgiPrefix)
	if err != nil {
		return s, unlessOff(err)
	}
	if err := tgiSample(&s, f, info.PoolTokens); err != nil {
		return Sample{}, fmt.Errorf("engine %s: %s/metrics: %w", e.name, e.base, err)
	}
	return s, nil
}

// tgiSample adds what the metrics say. TGI budgets a request's whole answer when it
// joins the batch, so its use is what may be needed, not what is.
func tgiSample(s *Sample, f families, pool int) error {
	if len(f) == 0 {
		return fmt.Errorf("got no %s...; the server may have renamed its metrics", tgiPrefix)
	}
	running, _, err := f.sum(tgiRunning)
	if err != nil {
		return err
	}
	waiting, _, err := f.sum(tgiWaiting)
	if err != nil {
		return err
	}
	tokens, series, err := f.sum(tgiTokens)
	if err != nil {
		return err
	}
	s.Running, s.Waiting = int(running), int(waiting)
	if pool > 0 && series > 0 {
		s.setUsage(min(1, tokens/float64(pool)))
	}
	return nil
}
