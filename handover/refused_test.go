package handover

import (
	"math"
	"testing"
	"time"
)

// One absurd request costs training its memory while it lives and no longer:
// refused, it leaves the forecast as it was, and the memory comes back as after
// any request.
func TestRefusedRequestGivesTrainingItsMemoryBack(t *testing.T) {
	h, now := grown(t)
	e := h.engines[0]
	before := e.target
	h.Step(Arrived{At: now + 1, ID: "a", Engine: "llm", PromptBytes: 100, MaxTokens: 16, Sequences: math.MaxInt32})
	if e.target > e.cfg.Pool || e.pred.Need() > e.cfg.Pool {
		t.Errorf("target %v, need %v, want at most the pool %v", e.target, e.pred.Need(), e.cfg.Pool)
	}
	h.Step(Finished{At: now + 10*time.Millisecond, ID: "a", Refused: true})
	if e.target != before {
		t.Errorf("target %v after the refusal, want %v as before the request", e.target, before)
	}
	if wait := h.settling(e); wait >= h.cfg.Horizon {
		t.Errorf("lending waits for %v, the whole horizon: the request is still counted as one that came", wait)
	}
}
