package handover

import (
	"testing"
	"time"
)

func TestWearIsTheWorkLostByAShrink(t *testing.T) {
	var w wear
	w.learn(time.Second) // before its first shrink: another cause
	if w.each != 0 {
		t.Errorf("%v a shrink before the first", w.each)
	}
	w.shrinks = 4
	w.learn(time.Second + 80*ms)
	if w.each != 20*ms {
		t.Errorf("%v a shrink, want 20ms", w.each)
	}
	w.learn(2 * time.Second) // no shrink since
	if w.each != 20*ms {
		t.Errorf("%v a shrink after work that was lost without one", w.each)
	}
	w.shrinks += 16
	w.learn(2*time.Second + 16*60*ms)
	if w.each != 40*ms {
		t.Errorf("%v a shrink, want half of the way from 20ms to 60ms", w.each)
	}
	w.shrinks++
	w.learn(ms) // it began anew
	if w.shrinks++; w.each != 40*ms {
		t.Errorf("%v a shrink after a new process came", w.each)
	}
	w.learn(41 * ms)
	if w.each != 40*ms {
		t.Errorf("%v a shrink, want the new process's total to count from its first report", w.each)
	}
}

// TestWearLeavesOutWhatWasLostBeforeTheFirstReport: a sidecar that starts beside a
// job of hours knows none of the shrinks that its total is of.
func TestWearLeavesOutWhatWasLostBeforeTheFirstReport(t *testing.T) {
	w := wear{shrinks: 1}
	w.learn(time.Hour)
	if w.each != 0 {
		t.Errorf("%v a shrink by a total from before anybody counted, want nothing known", w.each)
	}
	w.shrinks++
	w.learn(time.Hour + 20*ms)
	if w.each != 20*ms {
		t.Errorf("%v a shrink, want 20ms", w.each)
	}
}

// TestWaitIsWhatAShrinkCosts: a job of 40 samples a second that loses 50 ms by a
// shrink loses 2 samples; 64 MiB are worth 2 samples a second at first.
func TestWaitIsWhatAShrinkCosts(t *testing.T) {
	h := insured(t)
	e, tr := h.engines[0], h.trainers[0]
	tr.worth = newWorth([]Rate{{tr.budget, 40}})
	e.ins.perByte = 2.0 / float64(64*mib)
	h.rehearse(e)
	if got := e.ins.followed(); got != nil {
		t.Errorf("%+v is followed where nobody knows what a shrink costs, want the model without prices", got)
	}
	tr.wear.each = 50 * ms
	h.rehearse(e)
	x := e.ins.followed()
	if x == nil || x.rental != 1 || x.lot != 0 || x.bare {
		t.Fatalf("%+v is followed at first, want ski rental", x)
	}
	for excess, want := range map[Bytes]time.Duration{64 * mib: time.Second, 128 * mib: 500 * ms, mib: mostPatience * h.cfg.Horizon, 1 << 50: h.insured()} {
		want = min(want, mostPatience*h.cfg.Horizon)
		if excess < h.cfg.Quantum {
			want = min(mostPatience*h.cfg.Horizon, time.Duration(float64(64*mib)/float64(h.cfg.Quantum)*float64(time.Second)))
		}
		if got := h.waits(e, x, excess); got < want-time.Microsecond || got > want+time.Microsecond {
			t.Errorf("%v of excess wait %v, want %v", excess, got, want)
		}
	}
	e.ins.perByte = 0
	if got := e.ins.followed(); got != nil {
		t.Errorf("%+v is followed where memory is worth nothing to training", got)
	}
}

// TestDearShrinksMakeForFewer: with what a shrink costs the core waits longer
// before it lends, and the state says how long.
func TestDearShrinksMakeForFewer(t *testing.T) {
	run := func(each time.Duration) (int, ReserveState) {
		w := insuredReplay(t, 500*ms, nil)
		var report func()
		report = func() {
			ev := rated(w.now)
			ev.WorkLost = time.Duration(w.h.trainers[0].wear.shrinks) * each
			w.step(ev)
			w.after(time.Second, report)
		}
		w.after(20*ms, report)
		w.load(time.Second, 600)
		w.run(20 * time.Second)
		w.shrinks = 0
		w.run(time.Minute)
		return w.shrinks, w.reserve()
	}
	cheap, _ := run(0)
	dear, s := run(200 * ms)
	if dear >= cheap*2/3 || s.Priced.Patience <= 0 {
		t.Errorf("%d shrinks where each costs 200ms and %d where it costs nothing; patience %v", dear, cheap, s.Priced.Patience)
	}
}
