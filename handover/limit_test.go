package handover

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// limited is a core with all lent and a limit.
func limited(t testing.TB, l Limit) *Handover {
	s := &scenario{}
	c := demoConfig()
	c.Grace, c.Reserve, c.Limit = 0, 0, l
	h, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	s.h = h
	s.bringUp(t.(*testing.T), args{"trainers": "t0@d0/gpt"})
	return h
}

// TestWhatRequestsNeedIsTakenInSpiteOfTheLimit: and only what is ahead of need
// waits.
func TestWhatRequestsNeedIsTakenInSpiteOfTheLimit(t *testing.T) {
	h := limited(t, Limit{PerSecond: 0.001})
	for i := range 4 {
		before := h.trainers[0].budget
		h.Step(Arrived{At: h.now + ms, ID: id(i), Engine: h.engines[0].cfg.ID, NeedBytes: 64 * mib})
		if got := before - h.trainers[0].budget; got < 48*mib {
			t.Errorf("request %d: %v taken, want what it needs", i, got)
		}
	}
}

// TestArrivalsWaitForTheLimitWhereTheOperatorSaysSo: and what the world takes above
// the capacity is given back all the same.
func TestArrivalsWaitForTheLimitWhereTheOperatorSaysSo(t *testing.T) {
	h := limited(t, Limit{PerSecond: 0.5, Arrivals: true})
	eng := h.engines[0].cfg.ID
	h.Step(Arrived{At: h.now + ms, ID: "a", Engine: eng, NeedBytes: 64 * mib})
	tr, e := h.trainers[0], h.engines[0]
	before := tr.budget
	h.Step(Acked{At: h.now + ms, Trainer: "t0", Epoch: tr.epoch, Held: before, How: "drop"})
	h.Step(TrainerSeen{At: h.now, Trainer: "t0", Bytes: tr.floor + before})
	h.Step(BoundSet{At: h.now, Engine: eng, Epoch: e.epoch, Bound: e.bound})
	at := h.now
	acts := h.Step(Arrived{At: at + ms, ID: "b", Engine: eng, NeedBytes: 64 * mib})
	if h.trainers[0].budget != before {
		t.Errorf("taken %v for a second request within the limit", before-h.trainers[0].budget)
	}
	wake := At(0)
	for _, a := range acts {
		if w, ok := a.(Wake); ok {
			wake = w.At
		}
	}
	if wake == 0 || wake > at+2*time.Second+10*ms {
		t.Errorf("wake at %v, want one when the limit allows the next", wake)
	}
	if got := h.Snapshot().Devices[0].Deferred; got != 1 {
		t.Errorf("%d shrinks deferred, want 1", got)
	}
	h.Step(CapacitySeen{At: h.now + ms, Device: "d0", Capacity: h.devices[0].capacity - 100*mib})
	if got := before - h.trainers[0].budget; got < 96*mib || got > 112*mib {
		t.Errorf("%v taken for a device that lost 100MiB, want that much and no more", got)
	}
	h.Step(Tick{At: h.now + 3*time.Second})
	if h.trainers[0].budget > before-160*mib {
		t.Errorf("budget %v after the limit's wait, want what the second request needs taken too", h.trainers[0].budget)
	}
}

// TestBytesPerSecondSpreadAReclaim: in whole quanta, and never more in a time than
// its rate and one second's burst allow.
func TestBytesPerSecondSpreadAReclaim(t *testing.T) {
	h := limited(t, Limit{BytesPerSecond: 64 * mib, Arrivals: true})
	start, begin := h.trainers[0].budget, h.now
	h.Step(Arrived{At: h.now + ms, ID: "a", Engine: h.engines[0].cfg.ID, NeedBytes: 320 * mib})
	for h.now < begin+8*time.Second {
		h.Step(Tick{At: h.now + 50*ms})
		took := start - h.trainers[0].budget
		if most := Bytes(float64(64*mib) * (1 + (h.now - begin).Seconds())); took > most {
			t.Fatalf("%v taken after %v, want at most %v", took, h.now-begin, most)
		}
	}
	if took := start - h.trainers[0].budget; took < 300*mib {
		t.Errorf("%v taken in the end, want all that was needed", took)
	}
}

// TestShrinksAheadOfNeedStayWithinTheirRate: whatever comes when.
func TestShrinksAheadOfNeedStayWithinTheirRate(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := Limit{PerSecond: rapid.Float64Range(0.1, 20).Draw(rt, "rate"), BytesPerSecond: Bytes(rapid.IntRange(0, 8).Draw(rt, "bytes")) * 16 * mib}
		h := limited(t, c)
		d := h.devices[0]
		begin, shrinks, sum := h.now, 0, Bytes(0)
		for range rapid.IntRange(1, 60).Draw(rt, "asks") {
			h.now += time.Duration(rapid.IntRange(0, 500).Draw(rt, "ms")) * ms
			short := Bytes(rapid.IntRange(1, 8).Draw(rt, "short")) * 16 * mib
			must := min(short, Bytes(rapid.IntRange(0, 2).Draw(rt, "must"))*16*mib)
			got := h.allow(d, short, must)
			if got < must || got > short {
				rt.Fatalf("allowed %v of %v with %v due", got, short, must)
			}
			d.limit.spend(got)
			if got > must {
				shrinks, sum = shrinks+1, sum+got
			}
			if got < short {
				if at := d.limit.nextAt(c, h.cfg.Quantum); at <= h.now {
					rt.Fatalf("put off at %v until %v", h.now, at)
				}
			}
		}
		span := (h.now - begin).Seconds()
		if most := max(c.PerSecond, 1) + span*c.PerSecond; float64(shrinks) > most+1e-6 {
			rt.Fatalf("%d shrinks ahead of need in %.1f s at %v a second", shrinks, span, c.PerSecond)
		}
		if b := float64(c.BytesPerSecond); b > 0 && float64(sum) > b*(1+span)+1 {
			rt.Fatalf("%v ahead of need in %.1f s at %v a second", sum, span, c.BytesPerSecond)
		}
	})
}

func TestBadLimitNamesKeyValueAndRule(t *testing.T) {
	for want, l := range map[string]Limit{
		"policy.shrink_limit.per_second: got -1, want 0 (no limit) or more":                                                    {PerSecond: -1},
		"policy.shrink_limit.bytes_per_second: got -16.0MiB, want 0 (no limit) or more":                                        {BytesPerSecond: -16 * mib},
		fmt.Sprintf("policy.shrink_limit.bytes_per_second: got 1B, want at least policy.quantum, %v", DefaultConfig().Quantum): {BytesPerSecond: 1},
		"policy.shrink_limit.arrivals: got true without a limit, want per_second or bytes_per_second beside it":                {Arrivals: true},
	} {
		c := demoConfig()
		c.Limit = l
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

// TestLimitAsksForNoTickWhereNobodyHasAnythingToGive: with every trainer at its min
// budget more time brings nothing.
func TestLimitAsksForNoTickWhereNobodyHasAnythingToGive(t *testing.T) {
	l := limiter{waits: true, shrinks: 1, bytes: 1 << 30, at: 5 * time.Second}
	c := Limit{BytesPerSecond: 1 << 20}
	if got := l.nextAt(c, 16*mib); got != 5*time.Second+time.Millisecond {
		t.Errorf("got %v while there is something to take, want the next millisecond", got)
	}
	l.empty = true
	if got := l.nextAt(c, 16*mib); got != 0 {
		t.Errorf("got %v where nobody has anything, want no tick", got)
	}
}
