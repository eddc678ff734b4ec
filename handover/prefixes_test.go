package handover

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// look feeds counters as an engine that finds the given share would count them.
func (p *prefixes) look(at At, pool, cached Bytes, tokens int, share float64) {
	p.see(at, pool, cached, p.queried+uint64(tokens), p.hit+uint64(share*float64(tokens)))
}

// TestPrefixesAreKeptWhileTheirHitsAreWorthMoreThanTraining: half the tokens are
// found with 64 MiB cached and a tenth more with 320 MiB. At 1000 tokens a second and
// 1 ms of prefill a token the first 64 MiB save half a second a second, the next 256
// a tenth.
func TestPrefixesAreKeptWhileTheirHitsAreWorthMoreThanTraining(t *testing.T) {
	const pool = 640 * mib
	var p prefixes
	at := At(0)
	for range 600 {
		p.look(at, pool, 64*mib, 1000, 0.5)
		at += time.Second
	}
	for range 600 {
		p.look(at, pool, 320*mib, 1000, 0.6)
		at += time.Second
	}
	perMiB := func(v float64) float64 { return v / float64(mib) }
	for _, c := range []struct {
		training float64 // currency a second and MiB
		want     Bytes
	}{
		{0.5 / 64 * 1.1, 0}, {0.5 / 64 * 0.9, 64 * mib}, {0.1 / 256 * 1.1, 64 * mib}, {0.1 / 256 * 0.9, pool},
	} {
		p.price(at, pool, 0.001, perMiB(c.training))
		if p.keep < c.want-4*mib || p.keep > c.want+4*mib {
			t.Errorf("at %v a MiB to training %v is kept, want %v", c.training, p.keep, c.want)
		}
	}
	if p.price(at, pool, 0, 0); p.keep != 0 {
		t.Errorf("%v is kept of prefixes without a price", p.keep)
	}
}

func TestPrefixCountersThatGoBackAreAnotherProcess(t *testing.T) {
	var p prefixes
	p.look(0, 640*mib, 64*mib, 5000, 0.5)
	p.look(time.Second, 640*mib, 64*mib, 5000, 0.5)
	before := p.bins
	p.see(2*time.Second, 640*mib, 0, 10, 5)
	if p.bins != before {
		t.Errorf("a restart was learned from: %+v", p.bins)
	}
	p.look(3*time.Second, 640*mib, 0, 5000, 1)
	if p.bins[0].queried != 5000 {
		t.Errorf("got %+v, want the new process counted from its first reading", p.bins[0])
	}
}

// TestKeptPrefixesNeverSaveLessThanTrainingWould: against a search over the curve.
func TestKeptPrefixesNeverSaveLessThanTrainingWould(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const pool = 1600 * mib
		var p prefixes
		at := At(0)
		for range rapid.IntRange(1, 6).Draw(rt, "sizes") {
			cached := Bytes(rapid.IntRange(1, 1600).Draw(rt, "MiB")) * mib
			share := rapid.Float64Range(0, 1).Draw(rt, "share")
			for range 5 {
				p.look(at, pool, cached, 4000, share)
				at += time.Second
			}
		}
		perHit := rapid.Float64Range(0, 0.01).Draw(rt, "per hit")
		training := rapid.Float64Range(0, 1).Draw(rt, "training") / float64(100*mib)
		p.price(at, pool, perHit, training)
		hull := p.curve(make([]Rate, prefixBins+1))
		gain := func(b Bytes) float64 { return hull.at(b)*p.perSecond(p.looked)*perHit - training*float64(b) }
		kept := p.keep
		if len(hull) < 2 { // nothing is known to be found
			if kept != 0 && at >= lookupMemory || kept == 0 && perHit > 0 && at < lookupMemory {
				rt.Fatalf("%v is kept of what nothing is known of after %v", kept, at)
			}
			return
		}
		kept = min(kept, hull[len(hull)-1].Bytes)
		for b := Bytes(0); b <= hull[len(hull)-1].Bytes; b += 10 * mib {
			if gain(b) > gain(kept)+1e-6*(1+math.Abs(gain(kept))) {
				rt.Fatalf("%v kept gains %v, %v would gain %v", kept, gain(kept), b, gain(b))
			}
		}
	})
}

// cachedEngine is a core whose engine holds 200 MiB of prefixes that nobody needs.
func cachedEngine(t *testing.T, prefill float64) (*Handover, *engine) {
	h := insured(t)
	e := h.engines[0]
	h.Step(Priced{At: h.now, Sample: 1, Miss: 10, Prefill: prefill})
	h.Step(TrainerRated{At: h.now, Trainer: "t0", Curve: []Rate{{64 * mib, 1}, {640 * mib, 10}}})
	h.Step(PrefillSeen{At: h.now, PerToken: ms})
	h.Step(Arrived{At: h.now + ms, ID: "a", Engine: e.cfg.ID, NeedBytes: 200 * mib})
	for range 3 {
		h.Step(Acked{At: h.now + ms, Trainer: "t0", Epoch: h.trainers[0].epoch, Held: h.trainers[0].budget, How: "drop"})
		h.Step(TrainerSeen{At: h.now + ms, Trainer: "t0", Bytes: h.trainers[0].floor + h.trainers[0].budget})
		h.Step(BoundSet{At: h.now + ms, Engine: e.cfg.ID, Epoch: e.epoch, Bound: e.bound, Held: 200 * mib})
	}
	h.Step(Finished{At: h.now + ms, ID: "a", PromptTokens: 3000, OutputTokens: 10})
	return h, e
}

// quiet is half a minute in which prefixes are looked up and nothing else is needed.
func quiet(h *Handover, e *engine) {
	e.prefixes.heard = false
	for i := range 300 {
		held := min(200*mib, e.bound)
		h.Step(EngineSeen{
			At: h.now + 100*ms, Engine: e.cfg.ID, Held: held, Evictable: held, Cached: held, Bound: e.bound, BoundEpoch: e.epoch,
			PrefixQueries: uint64(i+1) * 1000, PrefixHits: uint64(i+1) * 900,
		})
		if !e.settled {
			h.Step(BoundSet{At: h.now, Engine: e.cfg.ID, Epoch: e.epoch, Bound: e.bound, Held: held})
		}
		if tr := h.trainers[0]; tr.open {
			h.Step(Acked{At: h.now, Trainer: "t0", Epoch: tr.epoch, Held: tr.budget, How: "nothing"})
			h.Step(TrainerSeen{At: h.now, Trainer: "t0", Bytes: tr.floor + tr.budget})
		}
	}
}

// TestBoundKeepsPrefixesThatAreWorthMoreThanTraining: end to end through Step: the
// same quiet, with a price of prefill, with a small one and with none.
func TestBoundKeepsPrefixesThatAreWorthMoreThanTraining(t *testing.T) {
	h, e := cachedEngine(t, 1)
	quiet(h, e)
	p := h.only().Priced
	if e.bound < 190*mib || p.PrefixesKept < 190*mib || p.ToPrefixes <= p.ToTraining || !strings.Contains(p.Prefixes, "tokens a second are found cached") {
		t.Errorf("bound %v, %+v: want the cache kept", e.bound, *p)
	}
	h, e = cachedEngine(t, 0.001)
	quiet(h, e)
	if p = h.only().Priced; e.bound > 100*mib || p.PrefixesKept != 0 || !strings.Contains(p.Prefixes, "less than the") {
		t.Errorf("bound %v, %+v: want the cache lent", e.bound, *p)
	}
	h, e = cachedEngine(t, 0)
	quiet(h, e)
	if p = h.only().Priced; e.bound > 100*mib || p.ToPrefixes != 0 || !strings.Contains(p.Prefixes, "policy.prices.prefill is not set") {
		t.Errorf("bound %v, %+v: want the cache lent", e.bound, *p)
	}
}

// TestNeedTakesPrefixesBeforeItTakesTraining: kept prefixes lie within the bound, so
// a request's need is met out of them, by the engine's own eviction.
func TestNeedTakesPrefixesBeforeItTakesTraining(t *testing.T) {
	h, e := cachedEngine(t, 1)
	quiet(h, e)
	before := h.trainers[0].budget
	acts := h.Step(Arrived{At: h.now + ms, ID: "b", Engine: e.cfg.ID, NeedBytes: 100 * mib, Slack: time.Second, Promised: true})
	for _, a := range acts {
		if o, ok := a.(Order); ok && o.Shrink {
			t.Errorf("%+v from %v beside a bound of %v that holds prefixes", o, before, e.bound)
		}
	}
}
