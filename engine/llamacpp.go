package engine

import (
	"context"
	"fmt"
	"net/http"

	"github.com/lull-project/lull/size"
)

// llama.cpp's metrics; the server publishes them with --metrics only.
const (
	llamaRunning = "llamacpp:requests_processing"
	llamaWaiting = "llamacpp:requests_deferred"
)

// llamaCPP is llama.cpp's server: a static pool of slots with a fixed context
// each. One reading is /props, /slots and /metrics; the last two may be off.
type llamaCPP struct {
	*client
	cfg Config
}

func newLlamaCPP(c Config) *llamaCPP { return &llamaCPP{newClient(c), c} }

// Capabilities: the logical use of a static pool.
func (e *llamaCPP) Capabilities() Capabilities {
	return Capabilities{Kind: KindLlamaCPP, ObserveLogical: true, Static: true}
}

// llamaProps is the part of GET /props that is read.
type llamaProps struct {
	TotalSlots int `json:"total_slots"`
	Defaults   struct {
		SlotTokens int `json:"n_ctx"` // the context of one slot
	} `json:"default_generation_settings"`
}

// llamaSlot is the part of an entry of GET /slots that is read.
type llamaSlot struct {
	Processing bool `json:"is_processing"`
	Tokens     int  `json:"n_prompt_tokens"` // prompt and what was decoded after it
}

// Observe reads the slots, and the queue where metrics are on.
func (e *llamaCPP) Observe(ctx context.Context) (Sample, error) {
	var p llamaProps
	if err := e.getJSON(ctx, "/props", &p); err != nil {
		return Sample{}, err
	}
	if p.TotalSlots <= 0 || p.Defaults.SlotTokens <= 0 {
		return Sample{}, fmt.Errorf("engine %s: %s/props: got total_slots %d and n_ctx %d, want llama.cpp's own numbers above 0", e.name, e.base, p.TotalSlots, p.Defaults.SlotTokens)
	}
	s := staticSample(e.cfg, e.now())
	s.MaxModelLen = p.Defaults.SlotTokens
	tokens := p.TotalSlots * p.Defaults.SlotTokens
	s.setPool(tokens)
	if err := e.slots(ctx, &s, tokens); err != nil {
		return Sample{}, err
	}
	return s, e.queue(ctx, &s)
}

// slots adds the logical use; a server without /slots leaves it unknown.
func (e *llamaCPP) slots(ctx context.Context, s *Sample, tokens int) error {
	var slots []llamaSlot
	if err := e.getJSON(ctx, "/slots", &slots); err != nil {
		return unlessOff(err)
	}
	used := 0
	for _, l := range slots {
		if l.Processing {
			s.Running++
			used += l.Tokens
		}
	}
	s.setUsage(min(1, float64(used)/float64(tokens)))
	s.Needed = min(size.Bytes(used)*s.BytesPerToken, s.Pool)
	return nil
}

// queue adds the requests that run and wait; without --metrics the slots' own
// count of running ones stays.
func (e *llamaCPP) queue(ctx context.Context, s *Sample) error {
	f, err := e.metrics(ctx, llamaRunning, llamaWaiting)
	if err != nil {
		return unlessOff(err)
	}
	running, _, err := f.first(llamaRunning)
	if err != nil {
		return fmt.Errorf("engine %s: %s/metrics: %w", e.name, e.base, err)
	}
	waiting, _, err := f.first(llamaWaiting)
	if err != nil {
		return fmt.Errorf("engine %s: %s/metrics: %w", e.name, e.base, err)
	}
	s.Running, s.Waiting = int(running), int(waiting)
	return nil
}

// unlessOff swallows the answer of an endpoint that is switched off.
func unlessOff(err error) error {
	if s := statusOf(err); s == http.StatusNotImplemented || s == http.StatusNotFound {
		return nil
	}
	return err
}
