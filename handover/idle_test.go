package handover

import (
	"testing"
	"time"
)

// TestIdleCoreAsksForNoTicks: once everything is lent and nothing is owed, the
// sidecar may sleep.
func TestIdleCoreAsksForNoTicks(t *testing.T) {
	w := newReplay(t, demoConfig(), 1)
	w.load(0, 50)
	w.run(4 * time.Minute) // the arrivals' rate fades meanwhile
	if w.budget < demoElastic-48*mib {
		t.Fatalf("budget %v after minutes without a request, want nearly all of %v", w.budget, demoElastic)
	}
	before := w.wakes
	w.run(6 * time.Minute)
	if n := w.wakes - before; n > 0 {
		t.Fatalf("%d wakes in two idle minutes, want none", n)
	}
}

// TestWakesAloneLendAnUnusedBound: without any other event the core asks for
// the ticks it needs to lend what is left over.
func TestWakesAloneLendAnUnusedBound(t *testing.T) {
	w := newReplay(t, demoConfig(), 1)
	w.quiet = true
	w.run(time.Minute)
	if w.budget < demoElastic-48*mib {
		t.Fatalf("budget %v, want nearly all of %v", w.budget, demoElastic)
	}
	if w.wakes > 60 {
		t.Fatalf("%d wakes in a minute, want few", w.wakes)
	}
}
