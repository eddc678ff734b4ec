package handover

import (
	"strings"
	"testing"
)

// TestStateSaysWhyATrainerHasNothing: one sentence for each reason, and none where it
// has what it needs.
func TestStateSaysWhyATrainerHasNothing(t *testing.T) {
	start := func() *Handover {
		h := insured(t)
		h.trainers[0].budget, h.trainers[0].minBudget = 0, 64*mib
		return h
	}
	for want, spoil := range map[string]func(h *Handover){
		"nothing is granted before its floor is known":               func(h *Handover) { h.trainers[0].floorKnown = false },
		"jobs of before have a moment to say hello":                  func(h *Handover) { h.graceAt = h.now + ms },
		"an order of its job is not done yet":                        func(h *Handover) { h.trainers[0].open = true },
		"engine llm is down: room is kept for its start":             func(h *Handover) { h.engines[0].down = true },
		"engine llm cannot be read or has not confirmed":             func(h *Handover) { h.engines[0].unread = true },
		"trainer t0 on the device is not known well enough":          func(h *Handover) { h.trainers[0].seen = false },
		"of the device are free, and it needs 64.0MiB; engines keep": func(h *Handover) { h.engines[0].bound = h.engines[0].cfg.Pool },
		"must have been so for a moment":                             func(h *Handover) { h.trainers[0].mayHold, h.trainers[0].bytes = 0, h.trainers[0].floor },
	} {
		h := start()
		spoil(h)
		if got := h.Snapshot().Trainers[0].Why; !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	h := start()
	h.trainers[0].budget = 64 * mib
	if got := h.Snapshot().Trainers[0].Why; got != "" {
		t.Errorf("got %q for a trainer that has what it needs", got)
	}
	h = start()
	h.trainers[0].gone = true
	if got := h.Snapshot().Trainers[0].Why; got != "" {
		t.Errorf("got %q for one that has left", got)
	}
}
