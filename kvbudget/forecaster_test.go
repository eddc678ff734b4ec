package kvbudget

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func testForecaster(t testing.TB) *Forecaster {
	f, err := NewForecaster(ForecastConfig{Layout: Layout{PerToken: 64 << 10, BlockTokens: 16}, MaxModelLen: 8192, Horizons: testHorizons})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestForecastConfigErrorsNameKeyValueAndRule(t *testing.T) {
	ok := ForecastConfig{Layout: Layout{PerToken: 1}, Horizons: testHorizons}
	for want, c := range map[string]ForecastConfig{
		"forecast: layout: got 0 B a token":        {Horizons: testHorizons},
		"forecast: max_model_len: got -1, want 0":  {Layout: ok.Layout, Horizons: testHorizons, MaxModelLen: -1},
		"forecast: pool: got -1B, want 0":          {Layout: ok.Layout, Horizons: testHorizons, Pool: -1},
		"forecast: horizons: got none":             {Layout: ok.Layout},
		"forecast: horizons: got 1µs, want 1ms to": {Layout: ok.Layout, Horizons: []time.Duration{time.Microsecond}},
	} {
		if _, err := NewForecaster(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// driver plays random requests into a forecaster.
type driver struct {
	f    *Forecaster
	live []*Active
	at   time.Duration
}

func (d *driver) step(t *rapid.T) {
	d.at += time.Duration(rapid.IntRange(0, 400).Draw(t, "gap")) * ms
	which := func() int { return rapid.IntRange(0, len(d.live)-1).Draw(t, "which") }
	switch k := rapid.IntRange(0, 4).Draw(t, "kind"); {
	case k <= 1 || len(d.live) == 0:
		d.live = append(d.live, d.f.Arrive(d.at, Asked{
			Model: "m", PromptTokens: rapid.IntRange(-1, 9000).Draw(t, "prompt"),
			MaxTokens: rapid.IntRange(0, 300).Draw(t, "max"), Sequences: rapid.IntRange(0, 3).Draw(t, "n"),
		}))
	case k <= 3:
		r := d.live[which()]
		d.f.Progress(d.at, r, r.output+rapid.IntRange(-2, 60).Draw(t, "more"))
	default:
		i := which()
		d.f.Finish(d.at, d.live[i], Usage{OutputTokens: rapid.IntRange(0, 500).Draw(t, "output")})
		d.f.Drop(d.at, d.live[i]) // a second time: nothing
		d.live = append(d.live[:i], d.live[i+1:]...)
	}
}

func TestNeedEqualsAPlainSumAndQuantilesRise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, err := NewForecaster(ForecastConfig{Layout: Layout{PerToken: 64 << 10, BlockTokens: 16}, MaxModelLen: 8192, Horizons: testHorizons})
		if err != nil {
			t.Fatal(err)
		}
		d := &driver{f: f}
		for range rapid.IntRange(1, 80).Draw(t, "events") {
			d.step(t)
			var want Bytes
			for _, r := range d.live {
				want += f.cfg.Layout.Request(r.asked.PromptTokens + r.output)
				if r.limit > 0 && r.output > r.limit*r.asked.Sequences {
					t.Fatalf("%d tokens of a limit of %d", r.output, r.limit)
				}
			}
			if f.Need() != want || f.Live() != len(d.live) {
				t.Fatalf("need %v of %d, want %v of %d", f.Need(), f.Live(), want, len(d.live))
			}
			for i := range testHorizons {
				o := f.Outlook(d.at, i)
				last := want
				for _, q := range []float64{0.01, 0.5, 0.9, 0.95, 0.99} {
					// The search for a quantile is exact to a block or 0.1 %.
					if b := o.Quantile(q); b < last-f.cfg.Layout.Block()-last/1000 || b < want {
						t.Fatalf("quantile %v is %v, below %v", q, b, last)
					} else {
						last = b
					}
				}
				if below, upTo := o.At(last); below > upTo || math.IsNaN(below) || upTo > 1+1e-9 {
					t.Fatalf("P(less), P(at most) = %v, %v", below, upTo)
				}
			}
		}
	})
}

func TestSameCallsGiveSameForecasts(t *testing.T) {
	run := func() (all []Bytes) {
		f := testForecaster(t)
		rng := lcg(7)
		var live []*Active
		for k := range 3000 {
			at := time.Duration(k) * 20 * ms
			if rng.float() < 0.2 {
				live = append(live, f.Arrive(at, Asked{PromptTokens: int(1 + 900*rng.float())}))
			}
			for _, r := range live {
				f.Progress(at, r, r.output+1)
			}
			if len(live) > 12 {
				f.Finish(at, live[0], Usage{})
				live = live[1:]
			}
			if k%5 == 0 {
				o := f.Outlook(at, k%3)
				all = append(all, o.Quantile(0.95), o.Assumed(0.95))
			}
		}
		return all
	}
	a, b := run(), run()
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("forecast %d: %v and %v", i, a[i], b[i])
		}
	}
}

func TestOutcomeIsTheLargestNeedWithinTheHorizon(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := &lookout{horizon: time.Second, levels: newRecalibration(), usual: newUsual()}
		type moment struct {
			at   time.Duration
			need Bytes
		}
		var told []moment
		made := map[time.Duration]Bytes{}
		at, need := time.Duration(0), Bytes(0)
		check := func() {
			for p, most, ok := o.due(at); ok; p, most, ok = o.due(at) {
				want := p.need
				for _, m := range told {
					if m.at >= p.at && m.at <= p.at+o.horizon {
						want = max(want, m.need)
					}
				}
				if most != want {
					t.Fatalf("largest need from %v: %v, want %v", p.at, most, want)
				}
			}
		}
		for range rapid.IntRange(1, 100).Draw(t, "n") {
			at += time.Duration(rapid.IntRange(1, 200).Draw(t, "gap")) * ms
			check()
			if rapid.Bool().Draw(t, "look") {
				o.keep(at, &peakLaw{}, need, 0)
				made[at] = need
			} else {
				need = Bytes(rapid.IntRange(0, 1000).Draw(t, "need"))
				told = append(told, moment{at, need})
				o.see(need)
			}
		}
	})
}

func TestNothingLiveAndNothingSeenNeedsNothing(t *testing.T) {
	f := testForecaster(t)
	o := f.Outlook(time.Second, 2)
	if b := o.Quantile(0.99); b != 0 {
		t.Errorf("P99 before the first request: %v, want 0", b)
	}
}

func TestAnswerAtItsLimitIsNotExpectedToGrow(t *testing.T) {
	f := testForecaster(t)
	r := f.Arrive(0, Asked{PromptTokens: 100, MaxTokens: 10})
	f.Progress(ms, r, 50)
	if r.output != 10 {
		t.Errorf("%d tokens counted of a limit of 10", r.output)
	}
	if l := f.law(2*ms, 2); l.grow != 0 {
		t.Errorf("an answer at its limit grows by %v", l.grow)
	}
}

func TestKnownAnswerEndsWhenItIsKnownTo(t *testing.T) {
	f := testForecaster(t)
	r := f.Arrive(0, Asked{PromptTokens: 100, Answer: 40})
	f.Progress(ms, r, 1)
	if l := f.law(2*ms, 1); l.fall != 0 || l.grow == 0 {
		t.Errorf("30 more tokens of 40: falls by %v, grows by %v", l.fall, l.grow)
	}
	f.Progress(2*ms, r, 38)
	if l := f.law(3*ms, 1); l.fall != float64(r.Held()) {
		t.Errorf("2 tokens before its end: falls by %v, want all that it holds", l.fall)
	}
}

func TestHotPathAllocatesNothing(t *testing.T) {
	f := testForecaster(t)
	r := f.Arrive(0, Asked{PromptTokens: 100})
	at := time.Duration(0)
	if n := testing.AllocsPerRun(500, func() { at += ms; f.Progress(at, r, r.output+1) }); n != 0 {
		t.Errorf("%v allocations a token", n)
	}
	if n := testing.AllocsPerRun(500, func() {
		at += ms
		o := f.Outlook(at, 1)
		_ = o.Quantile(0.95) + f.Demand(at, 0, 0.95)
	}); n != 0 {
		t.Errorf("%v allocations a forecast", n)
	}
}

// TestDemandFollowsNeedAtOnce: only the rise above it may be a moment old.
func TestDemandFollowsNeedAtOnce(t *testing.T) {
	f := testForecaster(t)
	at := time.Duration(0)
	for i := range 400 {
		at += 37 * ms
		r := f.Arrive(at, Asked{PromptTokens: 200 + i%7*300})
		f.Progress(at, r, 1)
		for h := range testHorizons {
			f.Demand(at, h, 0.95)
		}
		f.Drop(at, r)
	}
	r := f.Arrive(at, Asked{PromptTokens: 5000})
	for h := range testHorizons {
		if d := f.Demand(at, h, 0.95); d < r.Held() {
			t.Errorf("horizon %v: demand %v is below the present need %v", testHorizons[h], d, r.Held())
		}
	}
	before, held := f.Demand(at, 2, 0.95), r.Held()
	f.Drop(at, r)
	if after := f.Demand(at, 2, 0.95); after != before-held {
		t.Errorf("demand %v before and %v after a request left that held %v", before, after, held)
	}
}

// TestLeadCountsTheNextTokensAsNeeded: a block is there before its tokens are seen.
func TestLeadCountsTheNextTokensAsNeeded(t *testing.T) {
	c := ForecastConfig{Layout: Layout{PerToken: 1 << 10, BlockTokens: 16}, Horizons: []time.Duration{40 * ms}, Lead: true}
	f, err := NewForecaster(c)
	if err != nil {
		t.Fatal(err)
	}
	r := f.Arrive(0, Asked{PromptTokens: 100})
	f.Progress(0, r, 11) // 111 of 112 tokens: two more come within 40 ms at 30 a second
	if want := c.Layout.Request(113); r.Held() != want {
		t.Errorf("held %v, want the next block too, %v", r.Held(), want)
	}
	s := f.Arrive(0, Asked{PromptTokens: 100, MaxTokens: 12})
	f.Progress(0, s, 11)
	if want := c.Layout.Request(112); s.Held() != want {
		t.Errorf("held %v one token before the limit, want %v", s.Held(), want)
	}
}

// TestAimKeepsWhatWasLearned: and forgets the forecasts that nobody can judge.
func TestAimKeepsWhatWasLearned(t *testing.T) {
	f := testForecaster(t)
	at := time.Duration(0)
	for range 300 {
		at += 200 * ms
		f.Finish(at, f.Arrive(at, Asked{PromptTokens: 300}), Usage{OutputTokens: 60})
		f.Outlook(at, 1)
	}
	judged := f.looks[1].levels.all.count()
	f.Aim(1, 700*ms)
	if f.Horizon(1) != 700*ms || f.looks[1].n != 0 || f.looks[1].levels.all.count() != judged || judged == 0 {
		t.Errorf("horizon %v, %d pending, %v judged of %v", f.Horizon(1), f.looks[1].n, f.looks[1].levels.all.count(), judged)
	}
	if o := f.Outlook(at, 1); o.Quantile(0.99) == 0 {
		t.Error("nothing is expected over the new horizon")
	}
}

// loaded has so many live requests and a history behind them.
func loaded(b *testing.B, live int) (*Forecaster, []*Active, time.Duration) {
	f := testForecaster(b)
	rng := lcg(11)
	var all []*Active
	at := time.Duration(0)
	for i := range 3000 + live {
		at += time.Duration(-math.Log(rng.float()) * float64(100*ms))
		r := f.Arrive(at, Asked{PromptTokens: int(1 - 800*math.Log(rng.float()))})
		f.Progress(at, r, 1+int(150*rng.float()))
		all = append(all, r)
		if len(all) > live {
			f.Finish(at, all[0], Usage{})
			all = all[1:]
		}
		if i%10 == 0 {
			f.Outlook(at, i%3)
		}
	}
	return f, all, at
}

func benchmarkForecast(b *testing.B, live int) {
	f, _, at := loaded(b, live)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		at += ms
		o := f.Outlook(at, i%3)
		_ = o.Quantile(0.95)
	}
}

func BenchmarkForecast50(b *testing.B)   { benchmarkForecast(b, 50) }
func BenchmarkForecast1000(b *testing.B) { benchmarkForecast(b, 1000) }

func BenchmarkForecastToken(b *testing.B) {
	f, live, at := loaded(b, 50)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		at += time.Microsecond
		r := live[i%len(live)]
		f.Progress(at, r, r.output+1)
	}
}

func BenchmarkForecastArriveAndFinish(b *testing.B) {
	f, _, at := loaded(b, 50)
	b.ReportAllocs()
	for b.Loop() {
		at += ms
		f.Finish(at, f.Arrive(at, Asked{PromptTokens: 300}), Usage{OutputTokens: 60})
	}
}
