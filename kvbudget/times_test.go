package kvbudget

import (
	"math"
	"testing"
	"time"
)

func TestTimesKeepTheTailAndTheFailures(t *testing.T) {
	h := NewTimes(12 * time.Millisecond)
	if got := h.Late(10 * time.Millisecond); got != 1 {
		t.Errorf("before the first: late for 10ms with probability %v, want 1: it takes what it is given", got)
	}
	if got := h.Late(time.Second); got <= 0 || got > 0.05 {
		t.Errorf("before the first: late for 1s with probability %v, want a little", got)
	}
	for i := range 10_000 {
		switch {
		case i%100 == 0:
			h.Fail()
		case i%50 == 1:
			h.Learn(700 * time.Millisecond)
		default:
			h.Learn(3 * time.Millisecond)
		}
	}
	for slack, want := range map[time.Duration]float64{
		time.Millisecond: 1, 5 * time.Millisecond: 0.03, 500 * time.Millisecond: 0.03, time.Second: 0.01, time.Hour: 0.01,
	} {
		if got := h.Late(slack); math.Abs(got-want) > 0.004 {
			t.Errorf("late for %v with probability %v, want about %v", slack, got, want)
		}
	}
	if got := h.Failed(); math.Abs(got-0.01) > 0.003 {
		t.Errorf("%v failed, want 1 in 100", got)
	}
	if d, ok := h.Quantile(0.9); !ok || d < 3*time.Millisecond || d > 4*time.Millisecond {
		t.Errorf("nine in ten within %v, %v", d, ok)
	}
	if d, ok := h.Quantile(0.999); ok {
		t.Errorf("nearly all within %v, and 1 in 100 never ended", d)
	}
}

func TestAFailureThatEndsAfterAllHasItsTime(t *testing.T) {
	h := NewTimes(time.Millisecond)
	for range 3000 {
		h.Learn(time.Millisecond)
	}
	f := h.Fail()
	during := h.Late(time.Hour)
	h.Recover(f, 40*time.Millisecond)
	if during < 0.001 || h.Late(time.Hour) > during/10 || h.Late(30*time.Millisecond) < during*0.9 {
		t.Errorf("failed %v, then %v; late for 30ms %v", during, h.Late(time.Hour), h.Late(30*time.Millisecond))
	}
	h.Recover(Failure{weight: math.MaxFloat64}, time.Millisecond) // from before weights were rescaled
	if got := h.Failed(); got != 0 {
		t.Errorf("failed %v, want no less than none", got)
	}
}

func TestTimesForgetWhatWasLongAgo(t *testing.T) {
	h := NewTimes(12 * time.Millisecond)
	for range 200 {
		h.Fail()
	}
	for range 20_000 { // also past the rescaling of weights
		h.Learn(2 * time.Millisecond)
	}
	if got := h.Failed(); got > 1e-9 {
		t.Errorf("failed %v, want all but forgotten", got)
	}
	if got := h.Late(time.Millisecond); math.Abs(got-1) > 1e-9 {
		t.Errorf("late for 1ms with %v, want 1", got)
	}
}

func TestTollWeighsSlackByTiersPrice(t *testing.T) {
	h := NewTimes(time.Millisecond)
	for range 5000 {
		h.Learn(100 * time.Millisecond)
	}
	var x Exposure
	price := func(tier string) float64 { return map[string]float64{"gold": 10, "": 1}[tier] }
	if toll := x.Toll(h, time.Second, price); toll.Price != 0 || x.Promised() {
		t.Errorf("before the first request: %+v", toll)
	}
	for range 1000 {
		x.Add("", 0, false)                           // promised nothing
		x.Add("", 500*time.Millisecond, true)         // never late
		x.Add("", 50*time.Millisecond, true)          // always
		x.Add("gold", 50*time.Millisecond, true)      // always, and dear
		x.Add("free", 50*time.Millisecond, true)      // always, for nothing
		x.Add("gold", 20*1000*time.Millisecond, true) // never
	}
	toll := x.Toll(h, time.Second, price)
	if math.Abs(toll.Late-0.5) > 0.01 || math.Abs(toll.Price-11.0/6) > 0.02 {
		t.Errorf("got %+v, want half of them late and 11/6 a request", toll)
	}
	if toll.Slack < 45*time.Millisecond || toll.Slack > 50*time.Millisecond {
		t.Errorf("the late ones had %v on the mean, want 50ms", toll.Slack)
	}
}

// TestWhatIsLeftOfAHandoverUnderWay: of hundred handovers 99 take 10 ms and one
// 1 s, so that one is under way for half of the time that any is.
func TestWhatIsLeftOfAHandoverUnderWay(t *testing.T) {
	h := NewTimes(time.Millisecond)
	for i := range 20_000 {
		if h.Learn(10 * time.Millisecond); i%100 == 99 {
			h.Learn(time.Second)
		}
	}
	var met [lengthBucket]float64
	h.lateMet(2*time.Second, &met)
	if got := met[durationBin(500*time.Millisecond)]; got < 0.2 || got > 0.3 {
		t.Errorf("goes on for half a second more with %v, want a quarter", got)
	}
	if met[0] != 1 || met[durationBin(3*time.Second)] != 0 {
		t.Errorf("goes on at all with %v, beyond the horizon with %v", met[0], met[durationBin(3*time.Second)])
	}
	if got := h.Goes(0, 100*time.Millisecond); got < 0.005 || got > 0.02 {
		t.Errorf("a new one takes 100ms with %v, want one in hundred", got)
	}
	if got := h.Goes(50*time.Millisecond, 100*time.Millisecond); got < 0.99 {
		t.Errorf("one that has taken 50ms goes on for 100ms with %v, want surely", got)
	}
	if got := h.Goes(time.Hour, time.Second); got < 0.99 {
		t.Errorf("one that has taken an hour ends within a second with %v", 1-got)
	}
}

func TestHandoverMetUnderWayIsALongOne(t *testing.T) {
	h := NewTimes(time.Millisecond)
	for i := range 20_000 {
		if h.Learn(10 * time.Millisecond); i%100 == 0 {
			h.Learn(time.Second)
		}
	}
	if got := h.Around(2 * time.Second); got < 400*time.Millisecond || got > 600*time.Millisecond {
		t.Errorf("got %v, want half of the time to be that of the hundredth that takes 1s", got)
	}
	if got := h.Around(100 * time.Millisecond); got > 30*time.Millisecond {
		t.Errorf("got %v with a horizon of 100ms, want none to count for more", got)
	}
	for range 5000 {
		h.Fail()
	}
	if got := h.Around(2 * time.Second); got < 1900*time.Millisecond || got > 2*time.Second {
		t.Errorf("got %v where nearly all fail, want the horizon", got)
	}
}

func TestTiersBeyondTheMostCountWithTheFirst(t *testing.T) {
	var x Exposure
	for i := range 100 {
		x.Add(string(rune('a'+i%50)), time.Millisecond, true)
	}
	if len(x.tiers) != mostTiers {
		t.Errorf("%d tiers are kept, want %d", len(x.tiers), mostTiers)
	}
	for range 20_000 {
		x.Add("b", time.Millisecond, true)
	}
	if !(x.total > 0) || math.IsInf(x.total, 0) || x.tiers[1].n/x.total < 0.99 {
		t.Errorf("after many: total %v, of them %v", x.total, x.tiers[1].n)
	}
}
