package handover

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// insuredReplay is the demo's world with prices: a job that makes 20 samples a
// second with 64 MiB and 40 with all, a sample worth 0.001 and a miss 0.5.
func insuredReplay(t testing.TB, slack time.Duration, change func(w *replay)) *replay {
	return insuredReplayOf(t, 3, slack, change)
}

func insuredReplayOf(t testing.TB, seed int64, slack time.Duration, change func(w *replay)) *replay {
	w := newReplay(t, demoConfig(), seed)
	w.slack, w.promised = slack, true
	if change != nil {
		change(w)
	}
	w.after(0, func() { w.step(Priced{At: w.now, Sample: 0.001, Miss: 0.5}) })
	w.after(10*ms, func() { w.step(rated(w.now)) })
	return w
}

func rated(at At) TrainerRated {
	return TrainerRated{At: at, Trainer: "t0", Curve: []Rate{{64 * mib, 20}, {640 * mib, 40}}}
}

// insuredFor runs the load and returns the engine's reserve over its second half.
func (w *replay) insuredFor(t testing.TB, length time.Duration) (mean Bytes, last ReserveState) {
	w.load(time.Second, int(length.Seconds()*10))
	sum, n := Bytes(0), Bytes(0)
	for w.now < length {
		w.run(w.now + 100*ms)
		if w.now > length/2 {
			sum, n = sum+w.reserve().Bytes, n+1
		}
	}
	last = w.reserve()
	t.Logf("mean %v; %s; %+v", sum/n, last.Reason, *last.Priced)
	if w.worst > 0 {
		t.Errorf("the device was overcommitted by %v", w.worst)
	}
	return sum / n, last
}

func (w *replay) reserve() ReserveState { return w.h.Snapshot().Engines[0].Reserve }

// TestHonestReserveIsNearZeroWithFastHandovers: what a handover of milliseconds
// cannot bring in time for half a second of slack is nothing.
func TestHonestReserveIsNearZeroWithFastHandovers(t *testing.T) {
	mean, last := insuredReplay(t, 500*ms, nil).insuredFor(t, 4*time.Minute)
	if mean > 4*mib || last.Why != whyPriced {
		t.Errorf("keeps %v on the mean, %s: want next to nothing", mean, last.Why)
	}
	if last.Priced.ShadowMisses > 1 || last.Priced.Arrived < 1000 {
		t.Errorf("without a reserve %v of %d would have been missed, want none", last.Priced.ShadowMisses, last.Priced.Arrived)
	}
}

func TestShortSlackRaisesTheReserve(t *testing.T) {
	mean, last := insuredReplay(t, 2*ms, nil).insuredFor(t, time.Minute)
	if mean < 32*mib {
		t.Errorf("keeps %v on the mean, want more: no handover is done within 2ms", mean)
	}
	p := last.Priced
	if p.Covered == 0 || p.Saved <= 0 || p.Spent <= 0 || p.Displaced <= 0 || p.ShadowMisses <= p.Misses {
		t.Errorf("the books say %+v, want both sides to have accrued", p)
	}
}

func TestSlowHandoversRaiseTheReserve(t *testing.T) {
	slow := func(w *replay) { w.ackMin, w.ackSpread = 600*ms, 200*ms }
	mean, last := insuredReplay(t, 500*ms, slow).insuredFor(t, time.Minute)
	if mean < 32*mib || last.Priced.Late < 0.5 {
		t.Errorf("keeps %v on the mean with %v late, want more than with fast ones", mean, last.Priced.Late)
	}
}

// TestFailingHandoversRaiseTheReserve: most handovers take milliseconds, and a
// mean would say that all is well; one in five is not answered at all until it
// is repeated, later than the slack.
func TestFailingHandoversRaiseTheReserve(t *testing.T) {
	const runs = 4 // one may see few of its failures, since newer orders replace them
	sum, late := Bytes(0), 0.0
	for seed := range int64(runs) {
		mean, last := insuredReplayOf(t, seed+1, 40*ms, func(w *replay) { w.lost = 0.2 }).insuredFor(t, time.Minute)
		sum, late = sum+mean/runs, late+last.Priced.Late/runs
	}
	if sum < 16*mib || late < 0.005 {
		t.Errorf("keeps %v on the mean with %v late, want more than with sound ones", sum, late)
	}
}

// insured is a core with one engine, one trainer that has told its speed, all
// lent, and prices.
func insured(t *testing.T) *Handover {
	s := &scenario{}
	c := demoConfig()
	c.Grace, c.Reserve = 0, 32*mib
	h, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	s.h = h
	h.Step(Priced{Sample: 0.001, Miss: 0.5, Tiers: map[string]float64{"gold": 5}})
	s.bringUp(t, args{"trainers": "t0@d0/gpt"})
	return h
}

func (h *Handover) only() *ReserveState {
	s := h.reserveState(h.engines[0])
	return &s
}

func TestReserveIsTheConstantUntilATrainerHasToldItsSpeed(t *testing.T) {
	h := insured(t)
	if got := h.only(); got.Bytes != 30*mib || got.Why != whyUnrated || h.engines[0].target != 32*mib || !strings.Contains(got.Reason, "policy.reserve holds until then") {
		t.Errorf("got %+v", got)
	}
	h.Step(TrainerRated{At: h.now, Trainer: "t0", Curve: []Rate{{0, 1}, {64 * mib, math.NaN()}, {32 * mib, -1}, {16 * mib, math.Inf(1)}}})
	h.Step(Tick{At: h.now + insureEvery})
	if got := h.only(); got.Why != whyUnrated {
		t.Errorf("a curve that says nothing: %+v", got)
	}
	h.Step(rated(h.now))
	h.Step(Tick{At: h.now + insureEvery})
	if got := h.only(); got.Bytes != 0 || got.Why != whyNoArrival || got.Reason != "no request has come of late" {
		t.Errorf("before the first request: %+v", got)
	}
	h.Step(Arrived{At: h.now + ms, ID: "a", Engine: "llm", NeedBytes: 10 * mib})
	h.Step(Tick{At: h.now + insureEvery})
	if got := h.only(); got.Bytes != 0 || got.Why != whyUnasked || !strings.Contains(got.Reason, "promised") {
		t.Errorf("nobody was promised anything: %+v", got)
	}
	h.Step(TrainerGone{At: h.now, Trainer: "t0"})
	h.Step(TrainerSeen{At: h.now, Trainer: "t0"})
	h.Step(Tick{At: h.now + insureEvery})
	if got := h.only(); got.Bytes != 0 || got.Why != whyAlone || !strings.Contains(got.Reason, "no training") {
		t.Errorf("without a trainer: %+v", got)
	}
	h.Step(Priced{At: h.now})
	if got := h.only(); got.Bytes != 32*mib || got.Why != whyConstant || got.Priced != nil {
		t.Errorf("without prices: %+v", got)
	}
}

// TestBooksCompareWithAShadowWithoutAReserve walks through arrivals one by one:
// 30 MiB of reserve lie on the 2 MiB of one block, which is covered anyway.
func TestBooksCompareWithAShadowWithoutAReserve(t *testing.T) {
	h := insured(t)
	e := h.engines[0]
	if e.withheld() != 30*mib || e.bound != 30*mib+e.ins.base {
		t.Fatalf("withheld %v of a bound of %v, base %v", e.withheld(), e.bound, e.ins.base)
	}
	late := h.times.Late(0)
	arrive := func(id RequestID, need Bytes, tier string, promised bool) {
		h.Step(Arrived{At: h.now + ms, ID: id, Engine: "llm", NeedBytes: need, Tier: tier, Promised: promised})
		h.Step(Finished{At: h.now, ID: id})
	}
	base := e.ins.base
	arrive("fits", base, "", true)
	if b := e.ins.book; b.arrivals != 1 || b.covered+b.short != 0 || b.saved != 0 {
		t.Errorf("one that fits without a reserve: %+v", b)
	}
	e.ins.base = base // what the present request's own forecast made of it is another test's
	e.bound, e.confirmed = base+30*mib, base+30*mib
	arrive("covered", base+10*mib, "gold", true)
	if b := e.ins.book; b.covered != 1 || math.Abs(b.saved-5*late) > 1e-9 || b.shadowMisses != late || b.misses != 0 {
		t.Errorf("one that the reserve covers: %+v, want 5 times %v saved", b, late)
	}
	before := e.ins.book
	e.ins.base, e.bound, e.confirmed = base, base+30*mib, base+30*mib
	arrive("too large", base+50*mib, "", true)
	if b := e.ins.book; b.short != before.short+1 || b.saved != before.saved || b.misses <= before.misses || b.shadowMisses <= before.shadowMisses {
		t.Errorf("one that finds no room either way: %+v", b)
	}
	before = e.ins.book
	e.ins.base, e.bound, e.confirmed = base, base+30*mib, base+30*mib
	arrive("unpromised", base+10*mib, "gold", false)
	if b := e.ins.book; b.covered != before.covered+1 || b.saved != before.saved {
		t.Errorf("one that was promised nothing: %+v", b)
	}
	before = e.ins.book
	e.ins.base, e.bound, e.confirmed = base, base+30*mib, base+30*mib
	h.Step(Arrived{At: h.now + ms, ID: "lost", Engine: "llm", NeedBytes: base + 10*mib, Tier: "gold", Promised: true, Slack: -ms})
	if b := e.ins.book; b.covered != before.covered+1 || b.saved != before.saved || b.misses != before.misses || b.shadowMisses != before.shadowMisses {
		t.Errorf("one whose promise is lost whatever is done: %+v", b)
	}
}

func TestDisplacedSamplesAreBytesTimesTimeTimesTheirWorth(t *testing.T) {
	h := insured(t)
	h.Step(TrainerRated{At: h.now, Trainer: "t0", Curve: []Rate{{1024 * mib, 1024}}}) // one a second for each MiB
	e := h.engines[0]
	e.ins.stale = true
	e.ins.perByte = 1.0 / float64(mib)
	before := e.ins.book
	withheld := e.withheld()
	h.Step(Tick{At: h.now + 10*time.Second})
	want := float64(withheld/mib) * 10
	if got := e.ins.book.samples - before.samples; math.Abs(got-want) > 1e-6 {
		t.Errorf("%v samples for %v over 10s, want %v", got, withheld, want)
	}
	if got := e.ins.book.spent - before.spent; math.Abs(got-want*0.001) > 1e-9 {
		t.Errorf("spent %v, want %v", got, want*0.001)
	}
}

func TestReserveOffIsAnIntervalOfItsOwn(t *testing.T) {
	h := insured(t)
	h.Step(ReserveOff{At: h.now, Off: true})
	if got := h.only(); got.Bytes != 0 || got.Why != whyOff || !strings.Contains(got.Reason, "to check") {
		t.Errorf("got %+v", got)
	}
	at := h.now
	h.Step(Arrived{At: at + time.Second, ID: "a", Engine: "llm", NeedBytes: 300 * mib, Promised: true})
	h.Step(ReserveOff{At: at + 2*time.Second})
	p := h.only().Priced
	if p.Without != (Interval{2 * time.Second, 1, 1}) || p.With.Arrivals != 0 || h.only().Bytes == 0 {
		t.Errorf("with %+v, without %+v, then %v", p.With, p.Without, h.only().Bytes)
	}
}

func TestFailuresOfEveryKindCountAsForEver(t *testing.T) {
	for name, c := range map[string]struct {
		then   func(h *Handover, at At, epoch Epoch)
		failed bool
	}{
		"confirmed in time": {func(h *Handover, at At, epoch Epoch) {
			h.Step(Acked{At: at + 2*ms, Trainer: "t0", Epoch: epoch})
			h.Step(TrainerSeen{At: at + 3*ms, Trainer: "t0", Bytes: demoFloor})
		}, false},
		"owed past its deadline": {func(h *Handover, at At, epoch Epoch) { h.Step(Tick{At: at + insureEvery}) }, true},
		"late, but there": {func(h *Handover, at At, epoch Epoch) {
			h.Step(Tick{At: at + insureEvery})
			h.Step(Acked{At: at + 200*ms, Trainer: "t0", Epoch: epoch})
			h.Step(TrainerSeen{At: at + 201*ms, Trainer: "t0", Bytes: demoFloor})
		}, false},
		"a part only": {func(h *Handover, at At, epoch Epoch) {
			h.Step(Acked{At: at + 2*ms, Trainer: "t0", Epoch: epoch, Held: 560 * mib, How: howPart})
			h.Step(TrainerSeen{At: at + 3*ms, Trainer: "t0", Bytes: demoFloor + 560*mib})
		}, true},
		"the trainer is lost": {func(h *Handover, at At, epoch Epoch) {
			h.Step(TrainerGone{At: at + ms, Trainer: "t0"})
			h.Step(TrainerSeen{At: at + 2*ms, Trainer: "t0"})
		}, true},
		"it connects anew": {func(h *Handover, at At, epoch Epoch) {
			h.Step(Hello{At: at + ms, Trainer: "t0", Job: "gpt", Device: "d0", Floor: demoFloor, FloorKnown: true, Ceiling: 560 * mib})
		}, true},
		"replaced in time": {func(h *Handover, at At, epoch Epoch) {
			h.Step(Arrived{At: at + ms, ID: "b", Engine: "llm", NeedBytes: 50 * mib})
		}, false},
		"replaced again and again": {func(h *Handover, at At, epoch Epoch) {
			for i := range 12 {
				h.Step(Arrived{At: at + At(i)*10*ms, ID: id(i), Engine: "llm", NeedBytes: 20 * mib})
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := insured(t)
			before := h.times.Failed()
			at := h.now + ms
			var epoch Epoch
			for _, a := range h.Step(Arrived{At: at, ID: "a", Engine: "llm", NeedBytes: 200 * mib, Promised: true}) {
				if o, ok := a.(Order); ok && o.Shrink {
					epoch = o.Epoch
				}
			}
			if epoch == 0 {
				t.Fatal("nothing was ordered")
			}
			c.then(h, at, epoch)
			if failed := h.times.Failed() > before*1.2; failed != c.failed {
				t.Errorf("failed share %v after %v, want more: %v", h.times.Failed(), before, c.failed)
			}
		})
	}
}

func TestStaticEngineHasNoReserve(t *testing.T) {
	c := demoConfig()
	c.Engines[0].Fence = FenceStatic
	h, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	h.Step(Priced{Sample: 1, Miss: 1})
	if got := h.only(); got.Bytes != 0 || got.Why != whyStatic || got.Priced != nil {
		t.Errorf("got %+v", got)
	}
}

// TestNothingInfiniteIsShown: the state is JSON, which knows no infinity.
func TestNothingInfiniteIsShown(t *testing.T) {
	h := insured(t)
	for _, p := range []Priced{
		{Sample: math.MaxFloat64, Miss: math.MaxFloat64, Tiers: map[string]float64{"gold": math.Inf(1)}},
		{Sample: math.NaN(), Miss: 1}, {Sample: math.Inf(1), Miss: 1e-300}, {Sample: 1e-300, Miss: math.Inf(1)},
	} {
		p.At = h.now
		h.Step(p)
		for _, rate := range []float64{1e-300, mostSpeed, math.MaxFloat64} {
			h.Step(TrainerRated{At: h.now, Trainer: "t0", Curve: []Rate{{1, rate}, {640 * mib, rate}}})
			h.Step(Arrived{At: h.now + insureEvery, ID: "a", Engine: "llm", NeedBytes: 100 * mib, Tier: "gold", Promised: true})
			h.Step(Finished{At: h.now + insureEvery, ID: "a"})
			if _, err := json.Marshal(h.Snapshot()); err != nil {
				t.Errorf("%+v, %v samples: %v", p, rate, err)
			}
		}
	}
}

func TestWorthIsTheConcaveHullOfTheCurve(t *testing.T) {
	w := newWorth([]Rate{{10, 10}, {20, 9}, {30, 20}, {40, 18}, {50, 22}, {60, 21}})
	for budget, want := range map[Bytes]float64{1: 1, 10: 1, 11: 0.5, 30: 0.5, 31: 0.1, 50: 0.1, 60: 0, 1000: 0} {
		if got := w.perByte(budget); math.Abs(got-want) > 1e-12 {
			t.Errorf("at %d: %v a byte, want %v", budget, got, want)
		}
	}
	if got := worth(nil).perByte(10); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
	many := make([]Rate, 10_000)
	for i := range many {
		many[i] = Rate{Bytes(i + 1), float64(i + 1)}
	}
	if w := newWorth(many); w[len(w)-1].Bytes != mostRates {
		t.Errorf("keeps points up to %v, want %d of them", w[len(w)-1].Bytes, mostRates)
	}
}

// TestWorthNeverRisesWithTheBudget on any curve.
func TestWorthNeverRisesWithTheBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var curve []Rate
		for range rapid.IntRange(0, 20).Draw(t, "points") {
			curve = append(curve, Rate{Bytes(rapid.IntRange(-5, 200).Draw(t, "bytes")), rapid.Float64Range(-1, 100).Draw(t, "rate")})
		}
		w := newWorth(curve)
		last := math.Inf(1)
		for b := Bytes(1); b < 220; b++ {
			got := w.perByte(b)
			if got > last+1e-9 || got < 0 {
				t.Fatalf("%v a byte at %d after %v in %v", got, b, last, w)
			}
			last = got
		}
	})
}

// TestPricedReserveFadesWithTheArrivals: and then the core asks for no ticks.
func TestPricedReserveFadesWithTheArrivals(t *testing.T) {
	w := insuredReplay(t, 2*ms, nil)
	w.load(time.Second, 200)
	w.run(20 * time.Second)
	if w.reserve().Bytes == 0 {
		t.Fatal("no reserve under load, so nothing to fade")
	}
	w.run(time.Hour) // the longest memory of arrivals is of minutes
	before := w.wakes
	w.run(62 * time.Minute)
	if n, b := w.wakes-before, w.reserve().Bytes; n > 0 || b > 0 || w.budget < demoElastic-48*mib {
		t.Errorf("after an hour without a request: %d wakes, reserve %v, budget %v", n, b, w.budget)
	}
}

func TestSettleFixesTheSettlingTime(t *testing.T) {
	c := demoConfig()
	c.Settle = 7 * time.Second
	h, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if got, of := h.settling(h.engines[0]), h.settlingOf(h.devices[0]); got != c.Settle || of != c.Settle {
		t.Errorf("got %v and %v, want %v", got, of, c.Settle)
	}
}

// TestRequestWaitsForTheHandoverUnderWayOnlyWhereThatBringsEnough: else a new
// order replaces it, and the time begins anew.
func TestRequestWaitsForTheHandoverUnderWayOnlyWhereThatBringsEnough(t *testing.T) {
	h := insured(t)
	e := h.engines[0]
	if got := h.awaited(e, mib); got != 0 || e.ins.rides != 0 {
		t.Errorf("%v while none is under way", got)
	}
	h.Step(Arrived{At: h.now + ms, ID: "a", Engine: "llm", NeedBytes: 200 * mib, Promised: true})
	h.Step(Tick{At: h.now + 30*ms})
	if got := h.awaited(e, 0); got != 30*ms || e.ins.rides <= 0 {
		t.Errorf("waits for one that is %v old, rides %v; want 30ms and more than 0", got, e.ins.rides)
	}
	rides := e.ins.rides
	if got := h.awaited(e, 100*mib); got != 0 || e.ins.rides >= rides {
		t.Errorf("waits for one that is %v old, rides %v; want a new one and less than %v", got, e.ins.rides, rides)
	}
}
