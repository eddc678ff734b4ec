package slo

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// bench is a server whose gaps rise with the duty of training beside it and with a load
// that makes a controller lower that duty.
func (c *Contention) bench(rng *rand.Rand, n int, slope float64) (at time.Duration) {
	load, up := 0.0, c.Turn(0, 0, 0)
	for range n {
		load = 0.95*load + 0.1*rng.NormFloat64()
		z := -1.0
		if up {
			z = 1
		}
		duty := max(0.05, min(1, (0.6-load)*(1+0.15*z)))
		x := 0.4*(1+load) + slope*duty
		for range 20 {
			c.Gap(time.Duration(x*(1+0.3*rng.NormFloat64())*float64(limit)), limit)
		}
		at += time.Second
		up = c.Turn(at, duty, rng.Float64())
	}
	return at
}

// TestSlopeIsThatOfTheDutyAlone although load and duty move against each other.
func TestSlopeIsThatOfTheDutyAlone(t *testing.T) {
	for _, want := range []float64{0, 0.2, 0.5} {
		for seed := range uint64(5) {
			var c Contention
			c.bench(rand.New(rand.NewPCG(seed, 1)), 600, want)
			got, err, ok := c.slope()
			if !ok || math.Abs(got-want) > 4*err || err > 0.1 {
				t.Errorf("seed %d: slope %.3f (standard error %.3f, %v), want %.1f", seed, got, err, ok, want)
			}
		}
	}
}

// TestShareIsTheBestOfAllDuties against every duty on a fine grid, and against those
// just beside where a request begins to miss.
func TestShareIsTheBestOfAllDuties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64Range(0, 1000).Draw(rt, "seed")
		slope := rapid.SampledFrom([]float64{0.2, 0.5, 1}).Draw(rt, "slope")
		worth, floor := rapid.Float64Range(0.001, 5).Draw(rt, "worth"), rapid.SampledFrom([]float64{0.05, 0.3, 1}).Draw(rt, "floor")
		rng := rand.New(rand.NewPCG(seed, 2))
		var c Contention
		at := c.bench(rng, 100, slope)
		for range rapid.IntRange(leastRequests, 60).Draw(rt, "requests") {
			at += time.Second
			c.Ended(at, 1.4*rng.Float64(), 0.1+0.9*rng.Float64(), []float64{1, 5}[rng.IntN(2)])
		}
		got := c.Choose(at, worth, floor)
		if got.Why != SharePriced {
			rt.Skip("the slope is not known")
		}
		if got.Duty < floor || got.Duty > 1 {
			rt.Fatalf("duty %v, want within [%v, 1]", got.Duty, floor)
		}
		mean, around := c.x/c.n, c.d/c.n
		gapAt := func(d float64) float64 { return max(mean+got.Slope*(d-around), mean/20) }
		gain := func(d float64) float64 {
			lost := 0.0
			for _, r := range c.met {
				if r.used*gapAt(d)/gapAt(r.duty) > 1+1e-9 {
					lost += r.missed
				}
			}
			return worth*d - lost/(at-c.met[0].at).Seconds()
		}
		for d := floor; d <= 1; d += 0.001 {
			if gain(d) > gain(got.Duty)+1e-9 {
				rt.Fatalf("duty %.4f gains %.5f, %.4f would gain %.5f", got.Duty, gain(got.Duty), d, gain(d))
			}
		}
	})
}

func TestDearerMissesLowerTheShareAndDearerSamplesRaiseIt(t *testing.T) {
	share := func(worth, miss float64) Share {
		var c Contention
		rng := rand.New(rand.NewPCG(7, 7))
		at := c.bench(rng, 300, 0.5)
		for range 400 {
			at += time.Second / 2
			c.Ended(at, 0.3+0.9*rng.Float64(), 0.5, miss)
		}
		return c.Choose(at, worth, 0.05)
	}
	before := 2.0
	for _, miss := range []float64{0.01, 1, 3, 10, 1000} {
		got := share(1, miss)
		if got.Why != SharePriced || got.Duty > before {
			t.Errorf("a miss of %v: %+v, want a duty of at most %v", miss, got, before)
		}
		before = got.Duty
		if got.ToTraining != 0.01 {
			t.Errorf("one point is worth %v to training, want 0.01", got.ToTraining)
		}
	}
	if cheap, dear := share(1, 0.01), share(1, 1000); cheap.Duty != 1 || dear.Duty > 0.4 {
		t.Errorf("misses that cost nothing give %v and dear ones %v", cheap.Duty, dear.Duty)
	}
	inner := share(1, 3)
	if inner.Duty <= 0.05 || inner.Duty >= 1 || inner.ToRequests < inner.ToTraining/3 || inner.ToRequests > 3*inner.ToTraining {
		t.Errorf("at %+v the two sides do not meet", inner)
	}
}

func TestNothingIsChosenWithoutEvidence(t *testing.T) {
	full := func() (*Contention, time.Duration) {
		c := &Contention{}
		at := c.bench(rand.New(rand.NewPCG(3, 3)), 300, 0.5)
		for range 50 {
			c.Ended(at, 0.5, 0.5, 1)
		}
		return c, at
	}
	for name, f := range map[string]struct {
		spoil func(c *Contention) (worth float64)
		want  string
	}{
		"no worth":      {func(*Contention) float64 { return 0 }, ShareUnpriced},
		"few requests":  {func(c *Contention) float64 { c.met = c.met[:leastRequests-1]; return 1 }, ShareUncounted},
		"nothing tried": {func(c *Contention) float64 { *c = Contention{met: c.met}; return 1 }, ShareUntried},
		"few intervals": {func(c *Contention) float64 {
			m := c.met
			*c = Contention{met: m}
			c.bench(rand.New(rand.NewPCG(3, 3)), 20, 0.5)
			return 1
		}, ShareUntried},
		"all as it was":  {func(*Contention) float64 { return 1 }, SharePriced},
		"never a change": {func(c *Contention) float64 { c.dd = 0; return 1 }, ShareUntried},
		"noise alone":    {func(c *Contention) float64 { c.dxdx *= 1000; return 1 }, ShareUntried},
	} {
		c, at := full()
		got := c.Choose(at, f.spoil(c), 0.05)
		if got.Why != f.want || (got.Duty != 0) != (f.want == SharePriced) {
			t.Errorf("%s: got %+v, want %s", name, got, f.want)
		}
	}
	c, at := full()
	if got := c.Choose(at+contentionMemory+time.Second, 1, 0.05); got.Why != ShareUncounted {
		t.Errorf("ten minutes after the last request: %+v", got)
	}
}

// TestNoGapOrRequestMakesNonsenseOfTheShare: whatever comes, all figures are numbers and
// a duty is one.
func TestNoGapOrRequestMakesNonsenseOfTheShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c Contention
		figure := rapid.SampledFrom([]float64{0, 1e-300, 0.5, 1, 1e9, 1e18})
		floor := rapid.SampledFrom([]float64{1e-9, 0.1, 1}).Draw(t, "floor")
		at := time.Duration(0)
		for range rapid.IntRange(1, 200).Draw(t, "events") {
			at += time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "later"))
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				c.Turn(at, rapid.Float64Range(0, 1).Draw(t, "duty"), rapid.Float64Range(0, 0.999).Draw(t, "draw"))
			case 1:
				c.Ended(at, figure.Draw(t, "used"), rapid.Float64Range(0, 1).Draw(t, "beside"), figure.Draw(t, "price"))
			case 2:
				c.Rest()
			default:
				c.Gap(time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "gap")), time.Duration(rapid.IntRange(0, 2).Draw(t, "limit")))
			}
			s := c.Choose(at, figure.Draw(t, "worth"), floor)
			for _, v := range []float64{s.Duty, s.ToTraining, s.ToRequests, s.Slope, s.Err, s.Pairs} {
				if math.IsNaN(v) || math.IsInf(v, 0) {
					t.Fatalf("got %+v", s)
				}
			}
			if s.Why == SharePriced && !(s.Duty >= floor && s.Duty <= 1) {
				t.Fatalf("with a floor of %v: got %+v", floor, s)
			}
		}
	})
}
