package handover

import (
	"testing"
	"time"
)

func TestAllocDelayIsTheLeastOfTheLastMeasured(t *testing.T) {
	a := allocDelay{given: 5 * time.Millisecond}
	if got := a.value(); got != 5*time.Millisecond {
		t.Errorf("before any was measured: %v, want the config's 5ms", got)
	}
	a.add(time.Millisecond)
	for range delayMemory - 1 {
		a.add(20 * time.Millisecond)
	}
	if got := a.value(); got != time.Millisecond {
		t.Errorf("got %v, want the least, 1ms", got)
	}
	a.add(30 * time.Millisecond)
	if got := a.value(); got != 20*time.Millisecond {
		t.Errorf("after the least was forgotten: %v, want 20ms", got)
	}
}

// A hold depends on the measured delay: a handover shorter than it overlaps the
// engine's own queueing.
func TestMeasuredAllocDelayDecidesAboutHolding(t *testing.T) {
	for _, c := range []struct {
		delay time.Duration
		hold  bool
	}{{time.Second, false}, {time.Microsecond, true}} {
		cfg := demoConfig()
		h, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		e := h.engines[0]
		h.Step(AllocDelaySeen{At: 1, Engine: "llm", Delay: c.delay})
		h.Step(AllocDelaySeen{At: 1, Engine: "nobody", Delay: c.delay})
		if got := h.tail.mean > e.delay.value(); got != c.hold {
			t.Errorf("delay %v: handover %v counts as longer: %v, want %v", c.delay, h.tail.mean, got, c.hold)
		}
	}
}
