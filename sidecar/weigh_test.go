package sidecar

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/proxy"
	"github.com/lull-project/lull/slo"
)

// paced is interference by such a pace.
func paced(pace string) config.Interference {
	return config.Interference{Yield: config.Never, Pace: pace, ProgressFloor: 0.05}
}

// plant is a server whose gaps grow with training's duty: gap over limit is idle +
// slope·duty, and each request's own is spread around it.
type plant struct {
	idle, slope, spread float64
	rng                 *rand.Rand
}

// drive runs a compute against it, a request a second and twenty gaps, and returns the
// duty of every hundredth of a second.
func (p plant) drive(c *compute, worth, miss float64, seconds int) (duties []float64) {
	at, duty := handover.At(0), 1.0
	for range seconds {
		from := c.mark(at)
		mean := 0.0
		for tick := range 100 {
			at += computeEvery
			c.setWorth(worth, true)
			if tick%5 == 0 {
				x := (p.idle + p.slope*duty) * (1 + 0.2*p.rng.NormFloat64())
				c.gap(promised(), time.Duration(x*float64(promised().TBT)))
			}
			mean += (p.idle + p.slope*duty) / 100
			duty = c.advise(at, 0.1, 1).duty
			duties = append(duties, duty)
		}
		c.ended(at, from, mean*(1+p.spread*p.rng.Float64()), miss)
	}
	return duties
}

// TestPricedPaceIsThatOfAutoWithoutPricesOrSpeed: exactly, at every moment.
func TestPricedPaceIsThatOfAutoWithoutPricesOrSpeed(t *testing.T) {
	run := func(pace string) []float64 {
		c := newCompute(true, paced(pace), rand.New(rand.NewPCG(9, 9)).Float64)
		return plant{0.4, 0.5, 1, rand.New(rand.NewPCG(1, 2))}.drive(c, 0, 5, 120)
	}
	auto, priced := run(config.Auto), run(config.Priced)
	for i := range auto {
		if auto[i] != priced[i] {
			t.Fatalf("at %v: duty %v, and %v with auto", time.Duration(i)*computeEvery, priced[i], auto[i])
		}
	}
}

// TestDutyWithoutASpeedIsNotCalledUnpriced: prices that are set are not missing.
func TestDutyWithoutASpeedIsNotCalledUnpriced(t *testing.T) {
	c := newCompute(true, paced(config.Priced), rand.New(rand.NewPCG(9, 9)).Float64)
	for want, priced := range map[string]bool{"no_prices": false, "unrated": true} {
		c.setWorth(0, priced)
		if s := c.state(); s.Why != want {
			t.Errorf("priced %v: got %q, want %q", priced, s.Why, want)
		}
	}
}

// TestPricedPaceWithoutEvidenceStaysAroundThatOfAuto: by no more than the trials move it.
func TestPricedPaceWithoutEvidenceStaysAroundThatOfAuto(t *testing.T) {
	c := newCompute(true, paced(config.Priced), rand.New(rand.NewPCG(9, 9)).Float64)
	duties := plant{0.4, 0.5, 1, rand.New(rand.NewPCG(1, 2))}.drive(c, 1, 5, 20) // fewer requests than count
	if s := c.state(); s.Why != slo.ShareUncounted && s.Why != slo.ShareUntried {
		t.Fatalf("state %+v, want too little evidence", s)
	}
	sum := 0.0
	for _, d := range duties[1000:] {
		sum += d / float64(len(duties)-1000)
	}
	if rest := 0.6; math.Abs(sum-rest) > 0.15*rest { // (0.7 - 0.4) / 0.5
		t.Errorf("mean duty %.2f, want the %.2f at which mean gaps are 0.7 of their limit", sum, rest)
	}
}

// TestPricedPaceComesToRestWhereBothSidesAreWorthTheSame against the optimum by hand.
func TestPricedPaceComesToRestWhereBothSidesAreWorthTheSame(t *testing.T) {
	for _, c := range []struct{ worth, miss float64 }{{0.1, 1}, {1, 1}, {0.5, 1}, {2, 1}} {
		p := plant{0.4, 0.5, 1, rand.New(rand.NewPCG(4, 2))}
		x := newCompute(true, paced(config.Priced), rand.New(rand.NewPCG(9, 9)).Float64)
		duties := p.drive(x, c.worth, c.miss, 900)
		sum := 0.0
		for _, d := range duties[60_000:] {
			sum += d / float64(len(duties)-60_000)
		}
		best, gain := 0.0, math.Inf(-1)
		for d := 0.05; d <= 1; d += 0.01 { // of a request a second, whose use is mean·(1 + u)
			mean := p.idle + p.slope*d
			missing := min(max(1-(1/mean-1)/p.spread, 0), 1)
			if g := c.worth*d - c.miss*missing; g > gain {
				best, gain = d, g
			}
		}
		if math.Abs(sum-best) > 0.15 {
			t.Errorf("worth %v, miss %v: mean duty %.2f, want %.2f; %+v", c.worth, c.miss, sum, best, x.state())
		}
		if s := x.state(); s.Why != slo.SharePriced || math.Abs(s.Slope-p.slope) > 4*s.SlopeErr+0.02 || s.ToTraining != c.worth/100 {
			t.Errorf("state %+v, want it priced with a slope of %v", s, p.slope)
		}
	}
}

func TestUsedIsTheLargerPartOfARequestsPromise(t *testing.T) {
	p := promised()
	p.TPOT = p.TBT
	start := time.Unix(100, 0)
	r := proxy.Record{Outcome: proxy.OutcomeForwarded, Stream: true, Arrived: start, FirstContent: start.Add(120 * time.Millisecond), Held: 20 * time.Millisecond, OutputTokens: 11}
	r.LastContent = r.FirstContent.Add(200 * time.Millisecond)
	if got := used(p, r); got != 0.5 {
		t.Errorf("got %v, want the 100 of 200 ms that its first token took without held time", got)
	}
	r.LastContent = r.FirstContent.Add(600 * time.Millisecond)
	if got := used(p, r); got != 0.75 {
		t.Errorf("got %v, want the 60 of 80 ms of its mean gap", got)
	}
	r.Outcome = proxy.OutcomeClientGone
	if got := used(p, r); got != 0 || used(nil, r) != 0 {
		t.Errorf("got %v of a caller that left, want nothing", got)
	}
}

func TestMissHasThePriceOfItsTierAtThisHour(t *testing.T) {
	l := &loop{pricing: newPricing(byDay(), time.UTC, nil)}
	if got := l.missPrice("gold"); got != 0 {
		t.Errorf("before any price: %v", got)
	}
	l.pricing.news(0, monday)
	if gold, other := l.missPrice("gold"), l.missPrice("else"); gold != 3 || other != 2 {
		t.Errorf("got %v and %v, want 3 and 2", gold, other)
	}
}
