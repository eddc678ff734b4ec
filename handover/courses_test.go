package handover

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// rehearsed is a core whose courses can be compared: a sample costs 1, a shrink 2
// samples, and 64 MiB are worth one sample a second whatever the budget.
func rehearsed(t testing.TB) (*Handover, *engine) {
	s := &scenario{}
	c := demoConfig()
	c.Grace, c.Reserve = 0, 0
	h, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	s.h = h
	h.Step(Priced{Sample: 1, Miss: 10})
	s.bringUp(t.(*testing.T), args{"trainers": "t0@d0/gpt"})
	h.Step(TrainerRated{At: h.now, Trainer: "t0", Curve: []Rate{{64 * mib, 1}, {6400 * mib, 100}}})
	e, tr := h.engines[0], h.trainers[0]
	tr.wear.each = time.Duration(2 / tr.worth.at(tr.budget) * float64(time.Second))
	e.ins.perByte = 1.0 / float64(64*mib)
	h.rehearse(e)
	for i := range e.ins.courses.all { // from one bound, whatever came before
		e.ins.courses.all[i].shadow = shadow{bound: e.cfg.MinBound}
	}
	e.ins.courses.forget()
	return h, e
}

// want sets the demand and rehearses at a time.
func (h *Handover) wants(e *engine, at At, b Bytes) {
	h.now, e.ins.base, e.ins.choice = at, e.clamp(b.CeilTo(h.cfg.Quantum)), 0
	h.rehearse(e)
}

// naive plays one course in steps of a millisecond, each wait longer by some, and
// returns what it cost.
func naive(h *Handover, e *engine, x course, demand func(ms int) Bytes, length int, longer time.Duration) float64 {
	bound, cost, q := e.cfg.MinBound, 0.0, h.cfg.Quantum
	calmFrom, most := -1, Bytes(0)
	var wait time.Duration
	for i := range length {
		target := e.clamp(demand(i).CeilTo(q))
		if calmFrom >= 0 && time.Duration(i-calmFrom)*ms >= wait && bound-most >= q {
			bound, calmFrom = most, -1
		}
		if target > bound {
			cost += e.ins.courses.shrink
			bound, calmFrom = e.clamp(target+x.lot), -1
		}
		switch {
		case bound-target < q:
			calmFrom = -1
		case calmFrom < 0:
			calmFrom, most, wait = i, target, h.waits(e, &x, bound-target)+longer
		}
		most = max(most, target)
		cost += float64(bound) / float64(64*mib) / 1000
		cost *= math.Exp(-0.001 / coursesMemory.Seconds())
	}
	return cost
}

// TestCoursesCostWhatANaiveReplaySays: looked at only when something happens, each
// course costs what one that is played in steps of a millisecond costs.
func TestCoursesCostWhatANaiveReplaySays(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h, e := rehearsed(t)
		start := h.now
		var at []int
		var needs []Bytes
		length := 0
		for range rapid.IntRange(1, 12).Draw(rt, "changes") {
			at, needs = append(at, length), append(needs, Bytes(rapid.IntRange(0, 12).Draw(rt, "need"))*32*mib)
			length += rapid.IntRange(1, 40).Draw(rt, "tenths") * 100
		}
		demand := func(i int) Bytes {
			k := 0
			for k+1 < len(at) && at[k+1] <= i {
				k++
			}
			return needs[k]
		}
		for k := range at {
			h.wants(e, start+time.Duration(at[k])*ms, needs[k])
			// A look between two changes must change nothing but when a wait is seen to
			// be over, which the core's own wakes do.
			end := length
			if k+1 < len(at) {
				end = at[k+1]
			}
			for i := at[k] + 10; i < end; i += 10 {
				h.wants(e, start+time.Duration(i)*ms, needs[k])
			}
		}
		h.wants(e, start+time.Duration(length)*ms, needs[len(needs)-1])
		for _, x := range e.ins.courses.all {
			// A wait that ends just as the demand changes goes one way or the other, for a
			// whole shrink: what a few milliseconds make of it will do.
			var wants []float64
			near := false
			for _, longer := range []time.Duration{0, 15 * ms, -15 * ms} {
				want := naive(h, e, x, demand, length, longer)
				near = near || math.Abs(x.cost-want) <= 0.02*want+0.2
				wants = append(wants, want)
			}
			if !near {
				rt.Fatalf("rental %v, fixed %v, lot %v: cost %v, naive replays say %v", x.rental, x.fixed, x.lot, x.cost, wants)
			}
		}
	})
}

// pulse is demand that comes for a tenth of a second and goes for gap, again and
// again.
func pulse(h *Handover, e *engine, gap time.Duration, b Bytes, length time.Duration) {
	for at, end := h.now, h.now+length; at < end; at += gap + 100*ms {
		h.wants(e, at, b)
		for i := at + 100*ms; i < at+100*ms+gap; i += 50 * ms {
			h.wants(e, i, 0)
		}
	}
}

// TestWaitFollowsTheGapsThatWereSeen: an excess that is wanted again within less
// than a shrink costs is kept; one that is not is lent at once.
func TestWaitFollowsTheGapsThatWereSeen(t *testing.T) {
	h, e := rehearsed(t)
	pulse(h, e, 1100*ms, 128*mib, 3*time.Minute) // keeping it costs 2.2 a gap, ski rental 4
	x := e.ins.followed()
	if wait := h.waits(e, x, 128*mib); wait < 1100*ms {
		t.Errorf("with gaps of 1.1s an excess waits %v (%+v), want longer", wait, x)
	}
	pulse(h, e, 20*time.Second, 128*mib, 20*time.Minute)
	x = e.ins.followed()
	if wait := h.waits(e, x, 128*mib); wait > time.Second {
		t.Errorf("with gaps of 20 seconds an excess waits %v (%+v), want no longer than ski rental", wait, x)
	}
}

// TestGrowingDemandIsMetInLots: need that climbs in small steps would shrink the
// trainer at each of them; a lot takes several at a time (Scarf's (s, S)).
func TestGrowingDemandIsMetInLots(t *testing.T) {
	h, e := rehearsed(t)
	for range 60 {
		for b := Bytes(0); b < 512*mib; b += 16 * mib {
			h.wants(e, h.now+50*ms, b)
		}
		h.wants(e, h.now+4*time.Second, 0)
	}
	if x := e.ins.followed(); x.lot == 0 {
		t.Errorf("%+v is followed, want one with a lot", x)
	}
}

// TestCourseIsKeptUntilAnotherIsClearlyBetter: no course is left for less than what
// a change costs.
func TestCourseIsKeptUntilAnotherIsClearlyBetter(t *testing.T) {
	h, e := rehearsed(t)
	c := &e.ins.courses
	c.now = 0
	for i := range c.all {
		c.all[i].cost = 100
	}
	c.all[3].cost = 100 - 2 - courseShrinks*c.shrink + 0.1
	c.choose(&e.ins)
	if c.now != 0 {
		t.Errorf("course %d is followed for a gain within the margin", c.now)
	}
	c.all[3].cost -= 0.2
	c.choose(&e.ins)
	if c.now != 3 {
		t.Errorf("course %d is followed, want 3", c.now)
	}
	h.Step(Priced{At: h.now, Sample: 2, Miss: 20})
	if c.all[3].cost != 0 && c.all[3].cost > 10 {
		t.Errorf("what courses cost in other prices is remembered: %v", c.all[3].cost)
	}
}

// TestMissesCountInTheCoursesThatHadNoRoom: by the price of the request and the
// chance that the handover outlasts its slack: a new one, or the rest of one that
// brings enough.
func TestMissesCountInTheCoursesThatHadNoRoom(t *testing.T) {
	h, e := rehearsed(t)
	for range 1000 { // one in ten takes 100 ms, the others 1 ms
		for range 9 {
			h.times.Learn(ms)
		}
		h.times.Learn(100 * ms)
	}
	h.Step(Arrived{At: h.now, ID: "a", Engine: e.cfg.ID, NeedBytes: 100 * mib, Slack: 50 * ms, Promised: true})
	c := &e.ins.courses
	c.forget()
	c.all[0].shadow = shadow{bound: e.cfg.Pool}
	c.all[1].shadow = shadow{}
	c.all[2].shadow = shadow{bound: e.cfg.Pool, since: h.now - 20*ms}
	c.all[3].shadow = shadow{bound: e.cfg.Pool, since: h.now - 60*ms}
	h.meet(e, 50*ms, 10)
	for i, want := range []float64{0, 1, 1, 0} {
		if got := c.all[i].cost; math.Abs(got-want) > 0.05 {
			t.Errorf("course %d: misses cost %v, want about %v", i, got, want)
		}
	}
}

// TestLotIsTakenByAShrinkAndNotWithoutOne: the trainer gives the lot beside what is
// needed, the bound rises by both, and free bytes alone do not raise it so far.
func TestLotIsTakenByAShrinkAndNotWithoutOne(t *testing.T) {
	h, e := rehearsed(t)
	for i, x := range e.ins.courses.all {
		if x.lot > 0 {
			e.ins.courses.now = i
		}
	}
	lot := e.ins.lot()
	before := h.trainers[0].budget
	acts := h.Step(Arrived{At: h.now + ms, ID: "a", Engine: e.cfg.ID, NeedBytes: 200 * mib, Slack: time.Second, Promised: true})
	var order *Order
	for _, a := range acts {
		if o, ok := a.(Order); ok && o.Shrink {
			order = &o
		}
	}
	if order == nil || before-order.Bytes < e.target-e.bound+lot-h.cfg.Quantum {
		t.Fatalf("got %+v from a budget of %v, want a shrink by the need and %v more", order, before, lot)
	}
	h.Step(Acked{At: h.now + ms, Trainer: "t0", Epoch: order.Epoch, Held: order.Bytes, How: "drop"})
	h.Step(TrainerSeen{At: h.now + ms, Trainer: "t0", Bytes: h.trainers[0].floor + order.Bytes})
	if e.bound < e.target+lot-h.cfg.Quantum {
		t.Errorf("bound %v, want the target %v and the lot %v", e.bound, e.target, lot)
	}
	if e.ins.upTo != 0 {
		t.Errorf("the lot of a shrink that is done still raises bounds: %v", e.ins.upTo)
	}
}

// TestOverdueOrderIsRepeatedWhileARequestWaits: soon, and then ever more slowly.
func TestOverdueOrderIsRepeatedWhileARequestWaits(t *testing.T) {
	h, e := rehearsed(t)
	orders := 0
	count := func(acts []Action) {
		for _, a := range acts {
			if o, ok := a.(Order); ok && o.Shrink {
				orders++
			}
		}
	}
	count(h.Step(Arrived{At: h.now + ms, ID: "a", Engine: e.cfg.ID, NeedBytes: 200 * mib, Slack: time.Second, Promised: true}))
	if orders != 1 {
		t.Fatalf("%d shrinks, want one", orders)
	}
	for end := h.now + firstResend - ms; h.now < end; {
		count(h.Step(Tick{At: h.now + 5*ms}))
	}
	if orders < 3 || orders > 12 {
		t.Errorf("%d orders in 5s, want repeats that double", orders)
	}
}

// TestRehearsalAllocatesNothing: it runs in every Step.
func TestRehearsalAllocatesNothing(t *testing.T) {
	h, e := rehearsed(t)
	if n := testing.AllocsPerRun(100, func() {
		h.now += 10 * ms
		h.rehearse(e)
		h.meet(e, ms, 1)
	}); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// TestStateSaysWhichCourseIsFollowed: in words, beside what it saves.
func TestStateSaysWhichCourseIsFollowed(t *testing.T) {
	h, e := rehearsed(t)
	h.insure(e)
	p := h.only().Priced
	if p.Courses != len(e.ins.courses.all) || p.Course != "an excess waits as long as training loses 1 shrinks by it, a shrink takes 0B more than is needed, with the priced reserve" {
		t.Errorf("got %d courses, %q", p.Courses, p.Course)
	}
	for i, x := range e.ins.courses.all {
		if x.fixed == 2*time.Second && x.lot > 0 && x.bare {
			e.ins.courses.now = i
		}
	}
	e.ins.choice = 32 * mib
	h.wants(e, h.now+time.Second, 0)
	h.wants(e, h.now+time.Second, 0)
	e.ins.choice, e.ins.reserve = 32*mib, 0
	r := h.only()
	if p = r.Priced; p.Lot == 0 || p.CourseCost <= 0 || p.RentalCost <= 0 {
		t.Errorf("got %+v", *p)
	}
	if want := "the law would keep 32.0MiB, but on what came of late lending without a reserve cost less"; e.ins.why == whyPriced && r.Reason != want {
		t.Errorf("got %q", r.Reason)
	}
	e.ins.perByte = 0
	if p := h.only().Priced; p.Courses != 0 || p.Course != "none can be judged: no job has told its speed and what its shrinks cost, or a byte more is worth nothing to it" {
		t.Errorf("got %+v", *p)
	}
}

// TestOnlyNewPricesForgetWhatCoursesHaveCost: an interval without the reserve is no
// change of prices.
func TestOnlyNewPricesForgetWhatCoursesHaveCost(t *testing.T) {
	h, e := rehearsed(t)
	c := &e.ins.courses
	cost := func() (sum float64) {
		for i := range c.all {
			c.all[i].cost = 5
		}
		h.Step(ReserveOff{At: h.now, Off: true})
		h.Step(ReserveOff{At: h.now})
		for i := range c.all {
			sum += c.all[i].cost
		}
		return sum
	}
	if got := cost(); got == 0 {
		t.Error("two turns of the reserve forgot every cost")
	}
	h.Step(Priced{At: h.now, Sample: 1, Miss: 1})
	for i := range c.all {
		if c.all[i].cost != 0 {
			t.Fatalf("course %d still costs %v after a change of prices", i, c.all[i].cost)
		}
	}
}
