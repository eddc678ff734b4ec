package engine

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/lull-project/lull/size"
)

// llama.cpp's metrics; the server publishes them with --metrics only.
const (
	llamaRunning = "llamacpp:requests_processing"
	llamaWaiting = "llamacpp:requests_deferred"
)

// llamaQuiet is the least time between two readings of /slots and /metrics. The
// server looks whether a non-streaming caller has left only after a second in
// which no task of any request ended, and each of these two readings is a task:
// asked more often than once a second, it decodes to the end for nobody. /props
// is no task. Remove when llama.cpp checks on a clock of its own.
const llamaQuiet = 3 * time.Second

// llamaCPP is llama.cpp's server: a static pool of slots with a fixed context
// each. One reading is /props, and now and then /slots and /metrics; the last two
// may be off.
type llamaCPP struct {
	*client
	cfg Config

	mu   sync.Mutex
	last Sample // of the latest /slots and /metrics
}

func newLlamaCPP(c Config) *llamaCPP { return &llamaCPP{client: newClient(c), cfg: c} }

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

// Observe reads the context; use, running and waiting requests are up to
// llamaQuiet old.
func (e *llamaCPP) Observe(ctx context.Context) (Sample, error) {
	var p llamaProps
	if err := e.getJSON(ctx, "/props", &p); err != nil {
		return Sample{}, err
	}
	if p.TotalSlots <= 0 || p.TotalSlots > 1<<20 || p.Defaults.SlotTokens <= 0 || p.Defaults.SlotTokens > 1<<30 {
		return Sample{}, fmt.Errorf("engine %s: %s/props: got total_slots %d and n_ctx %d, want llama.cpp's own numbers above 0", e.name, e.base, p.TotalSlots, p.Defaults.SlotTokens)
	}
	s := staticSample(e.cfg, e.now())
	s.MaxModelLen = p.Defaults.SlotTokens
	tokens := p.TotalSlots * p.Defaults.SlotTokens
	s.setPool(tokens)
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.last.At.IsZero() && s.At.Sub(e.last.At) < llamaQuiet {
		s.UsageFrac, s.Needed, s.Running, s.Waiting = e.last.UsageFrac, e.last.Needed, e.last.Running, e.last.Waiting
		return s, nil
	}
	if err := e.slots(ctx, &s, tokens); err != nil {
		return Sample{}, err
	}
	if err := e.queue(ctx, &s); err != nil {
		return Sample{}, err
	}
	e.last = s
	return s, nil
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
			used += max(0, min(l.Tokens, s.MaxModelLen))
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
