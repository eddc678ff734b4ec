package handover

import "testing"

// TestFallOfTheBoundIsMeasuredWhereItGivesBytesBack: from the order until the engine
// confirms that it holds no more; a bound that nobody is above says nothing.
func TestFallOfTheBoundIsMeasuredWhereItGivesBytesBack(t *testing.T) {
	h := insured(t)
	e := h.engines[0]
	fall := func(held, to Bytes, took At) {
		e.held = held
		h.setBound(e, to, "lend")
		h.Step(BoundSet{At: h.now + took, Engine: e.cfg.ID, Epoch: e.epoch, Bound: to, Held: min(held, to)})
	}
	fall(32*mib, 48*mib, 5*ms)
	if e.falls != 0 {
		t.Errorf("%v by a fall that gave nothing back", e.falls)
	}
	fall(48*mib, 32*mib, 8*ms)
	if e.falls != 8*ms || h.Snapshot().Engines[0].BoundFall != 8*ms {
		t.Errorf("%v, want 8ms", e.falls)
	}
	fall(48*mib, 32*mib, 2*ms)
	if e.falls >= 8*ms || e.falls < 7*ms {
		t.Errorf("%v after a fast one, want a little less than 8ms", e.falls)
	}
}
