package kvbudget

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// lone is a forecaster that looks a millisecond ahead.
func lone() *Forecaster {
	f, err := NewForecaster(ForecastConfig{Layout: Layout{PerToken: 64 << 10, BlockTokens: 32}, Horizons: []time.Duration{time.Millisecond}})
	if err != nil {
		panic(err)
	}
	return f
}

// cameBy is a forecaster that has seen ten minutes of arrivals with needs of that
// law, in blocks, all of them gone again.
func cameBy(rng *rand.Rand, perSecond float64, blocks func() float64) (*Forecaster, time.Duration) {
	p := lone()
	at := time.Duration(0)
	for range int(600 * perSecond) {
		at += time.Duration(rng.ExpFloat64() / perSecond * float64(time.Second))
		p.Drop(at, p.Arrive(at, Asked{Need: Bytes(max(1, math.Ceil(blocks()))) * p.Layout().Block()}))
	}
	return p, at
}

// lognormal needs, as prompts are, cut where a histogram of 500 knows them.
func lognormal(rng *rand.Rand) func() float64 {
	return func() float64 { return min(math.Exp(2.2+0.9*rng.NormFloat64()), 80) }
}

// TestShortIsTheNumberThatASimulationFinds: of the arrivals of a window, those
// whose need with that of the earlier ones exceeds the room.
func TestShortIsTheNumberThatASimulationFinds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		perSecond float64
		window    time.Duration
	}{{10, 5 * time.Millisecond}, {10, 50 * time.Millisecond}, {4, time.Second}, {40, time.Second}} {
		need := lognormal(rng)
		p, at := cameBy(rng, c.perSecond, need)
		var law Arriving
		p.Arriving(at, c.window, &law)
		for _, blocks := range []float64{0, 8, 20, 60, 200} {
			room := Bytes(blocks) * p.Layout().Block()
			got, want := law.Short(room), simulated(rng, law.Mean, need, blocks)
			if want < 3e-4 {
				continue // too rare to be counted
			}
			t.Logf("%v/s within %v, room %v: %.5f, simulated %.5f", c.perSecond, c.window, room, got, want)
			off := 0.25
			if want < 0.01*law.Mean {
				off = 0.6 // far out: few of the 500 needs that count were so large
			}
			if math.Abs(got-want) > off*want+2e-4 {
				t.Errorf("%v/s within %v, room %v: got %.5f short, simulated %.5f", c.perSecond, c.window, room, got, want)
			}
		}
	}
}

// simulated is the mean number of arrivals of a Poisson window that find no room.
func simulated(rng *rand.Rand, mean float64, need func() float64, room float64) float64 {
	const windows = 100_000
	short := 0
	for range windows {
		sum := 0.0
		for at := rng.ExpFloat64(); at < mean; at += rng.ExpFloat64() {
			if sum += math.Max(1, math.Ceil(need())); sum > room {
				short++
			}
		}
	}
	return float64(short) / windows
}

func TestShortFallsAsRoomGrowsAndIsEveryArrivalWithoutRoom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		p, at := cameBy(rng, rapid.Float64Range(0.2, 5).Draw(t, "rate"), lognormal(rng))
		var law Arriving
		p.Arriving(at, time.Duration(rapid.IntRange(1, 2000).Draw(t, "ms"))*time.Millisecond, &law)
		if got := law.Short(0); math.Abs(got-law.Mean) > 1e-6+0.02*law.Mean {
			t.Fatalf("without room %v of %v are short", got, law.Mean)
		}
		last := math.Inf(1)
		for b := Bytes(0); b < 300*p.Layout().Block(); b += p.Layout().Block() {
			got := law.Short(b)
			if got > last*(1+1e-6)+1e-12 || got < 0 {
				t.Fatalf("at %v: %v short after %v with less room", b, got, last)
			}
			last = got
		}
	})
}

// TestLeastCostIsThatOfAFineGrid holds the search to brute force on losses of
// any shape that never rise: steps, cliffs and plateaus.
func TestLeastCostIsThatOfAFineGrid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 3000).Draw(t, "n")
		perStep := math.Exp(rapid.Float64Range(-12, 3).Draw(t, "price"))
		loss := make([]float64, n+1)
		if rapid.Bool().Draw(t, "smooth") {
			scale, top := rapid.Float64Range(1, 500).Draw(t, "scale"), rapid.Float64Range(0, 1e3).Draw(t, "top")
			for i := range loss {
				loss[i] = top * math.Exp(-float64(i)/scale)
			}
		} else {
			steps := rapid.SliceOfN(rapid.Float64Range(0, 100), 1, 12).Draw(t, "steps")
			slices.SortFunc(steps, func(a, b float64) int { return int(math.Copysign(1, b-a)) })
			for i := range loss {
				loss[i] = steps[i*len(steps)/len(loss)]
			}
		}
		looks := 0
		at, got := least(n, perStep, func(i int) float64 { looks++; return loss[i] })
		want := math.Inf(1)
		for i, l := range loss {
			want = min(want, perStep*float64(i)+l)
		}
		if c := perStep*float64(at) + loss[at]; math.Abs(c-got) > 1e-9*c {
			t.Fatalf("%d costs %v, said %v", at, c, got)
		}
		if got > want/(1-nearEnough)+1e-12 {
			t.Fatalf("%d of %d costs %v, the best %v", at, n, got, want)
		}
		if looks > mostLooks+2 {
			t.Fatalf("%d looks", looks)
		}
	})
}

// TestReserveIsNearTheBestOfEveryGridPoint is the same for the costs that
// reserves really have.
func TestReserveIsNearTheBestOfEveryGridPoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 2))
		p, at := cameBy(rng, rapid.Float64Range(0.2, 5).Draw(t, "rate"), lognormal(rng))
		var law Arriving
		p.Arriving(at, time.Duration(rapid.IntRange(1, 1000).Draw(t, "ms"))*time.Millisecond, &law)
		c := Cover{
			Phases: always(&law, Bytes(rapid.IntRange(0, 100).Draw(t, "room"))<<20), Step: 16 << 20, Most: 4 << 30,
			PerByte: math.Exp(rapid.Float64Range(-12, 0).Draw(t, "price")) / (1 << 30), Miss: 1,
		}
		c.Phases[0].Toll = math.Exp(rapid.Float64Range(-12, 0).Draw(t, "toll"))
		cost := func(r Bytes) float64 { return c.Premium(r) + c.Loss(r) }
		got, want := c.Choose(0), Bytes(0)
		for r := Bytes(0); r <= c.Most; r += c.Step {
			if cost(r) < cost(want) {
				want = r
			}
		}
		steps := float64(c.Most/c.Step) * leastSaving
		if got%c.Step != 0 || cost(got) > cost(want)*(1+2*worthMoving)+steps {
			t.Fatalf("%v costs %v, %v only %v", got, cost(got), want, cost(want))
		}
	})
}

// TestReserveIsTheCriticalRatioWhereNeedsAreExponential: there the expected
// number of requests without room is the expected excess of demand over the mean
// need, and the best reserve the newsvendor's: the demand that is exceeded with
// probability (price of a byte for the window) / (price of a byte that is
// lacking).
func TestReserveIsTheCriticalRatioWhereNeedsAreExponential(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const mean = 200.0 // blocks; many, so that whole blocks hardly matter
	need := func() float64 { return mean * rng.ExpFloat64() }
	p, at := cameBy(rng, 20, need)
	block := float64(p.Layout().Block())
	for _, window := range []time.Duration{50 * time.Millisecond, 300 * time.Millisecond} {
		var law Arriving
		p.Arriving(at, window, &law)
		demand := make([]float64, 200_000)
		for i := range demand {
			for at := rng.ExpFloat64(); at < law.Mean; at += rng.ExpFloat64() {
				demand[i] += need()
			}
		}
		slices.Sort(demand)
		for _, ratio := range []float64{0.2, 0.05, 0.01} {
			lacking := 1.0 / (mean * block) / window.Seconds() // a toll of 1 for each mean need that is lacking
			c := Cover{Phases: always(&law, 0), PerByte: ratio * lacking, Miss: 1, Step: p.Layout().Block(), Most: 1 << 44}
			got := float64(c.Choose(0)) / block
			want := demand[int(float64(len(demand))*(1-ratio))]
			cost := func(r float64) float64 { return c.Premium(Bytes(r*block)) + c.Loss(Bytes(r*block)) }
			t.Logf("window %v, ratio %v: reserve %.0f blocks, quantile %.0f; costs %.4g and %.4g", window, ratio, got, want, cost(got), cost(want))
			if cost(want) > cost(got)*1.1 || cost(got) > cost(want)*1.1 {
				t.Errorf("window %v, ratio %v: %.0f blocks cost %v, the critical quantile of %.0f costs %v", window, ratio, got, cost(got), want, cost(want))
			}
		}
	}
}

// always is one phase all the time.
func always(a *Arriving, room Bytes) [4]Phase {
	return [4]Phase{{Share: 1, Toll: 1, Arriving: a, Room: room}}
}

func TestPhasesCountByTheirShare(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	p, at := cameBy(rng, 10, lognormal(rng))
	var calm, busy Arriving
	p.Arriving(at, time.Millisecond, &calm)
	p.Arriving(at, time.Second, &busy)
	loss := func(share float64) float64 {
		c := Cover{Phases: [4]Phase{{1 - share, 1, &calm, 40 << 20}, {share, 1, &busy, 80 << 20}}}
		return c.Loss(0)
	}
	if got, want := loss(0.25), 0.75*loss(0)+0.25*loss(1); math.Abs(got-want) > 1e-9 || loss(1) <= loss(0) {
		t.Errorf("got %v, want %v of %v and %v", got, want, loss(0), loss(1))
	}
}

func TestReserveFollowsBothPrices(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	p, at := cameBy(rng, 10, lognormal(rng))
	var law Arriving
	p.Arriving(at, 20*time.Millisecond, &law)
	cover := func(perGiB, toll float64) Bytes {
		c := Cover{Phases: always(&law, 0), PerByte: perGiB / (1 << 30), Miss: 1, Step: 2 << 20, Most: 8 << 30}
		c.Phases[0].Toll = toll
		return c.Choose(0)
	}
	small, large, dear := cover(1, 0.01), cover(1, 1), cover(30, 1)
	if !(small < dear && dear < large) || cover(1, 0) != 0 || cover(1e6, 1) != 0 {
		t.Errorf("got %v with a small toll, %v with a large one, %v where training is dear, %v and %v at the ends", small, large, dear, cover(1, 0), cover(1e6, 1))
	}
	if free := cover(0, 1); free <= large || free == 8<<30 {
		t.Errorf("got %v where memory is worth nothing to training, want more than %v and not all", free, large)
	}
}

func TestReserveStaysWhereMovingSavesLittle(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	p, at := cameBy(rng, 10, lognormal(rng))
	var law Arriving
	p.Arriving(at, 20*time.Millisecond, &law)
	c := Cover{Phases: always(&law, 0), PerByte: 1.0 / (1 << 30), Miss: 1, Step: 2 << 20, Most: 8 << 30}
	best := c.Choose(0)
	for _, present := range []Bytes{best - 2<<20, best + 2<<20} {
		if got := c.Choose(present); got != present {
			t.Errorf("from %v to %v for next to nothing", present, got)
		}
	}
	if got := c.Choose(8 << 30); got != best {
		t.Errorf("stays at %v, want %v", got, best)
	}
}

func BenchmarkChooseReserve(b *testing.B) {
	rng := rand.New(rand.NewPCG(9, 10))
	p, at := cameBy(rng, 10, lognormal(rng))
	var law Arriving
	b.ReportAllocs()
	for b.Loop() {
		p.Arriving(at, 20*time.Millisecond, &law)
		c := Cover{Phases: always(&law, 0), PerByte: 1.0 / (1 << 30), Miss: 1, Step: 16 << 20, Most: 60 << 30}
		c.Choose(0)
	}
}

func TestLeavingIsTheChanceThatNobodyDoesAndTheMeanIfSomebodyDoes(t *testing.T) {
	p := lone()
	if none, some := p.Leaving(time.Second); none != 1 || some != 0 {
		t.Errorf("with nobody there %v, %v", none, some)
	}
	var live []*Active
	for range 4 {
		live = append(live, p.Arrive(0, Asked{Need: 100 << 20}))
	}
	p.residence = 2
	none, some := p.Leaving(time.Second)
	each := 1 - math.Exp(-0.5)
	left := 4 * each * float64(100<<20) / (1 - math.Exp(-4*each))
	grown := 4 * p.TokensPerSecond() * float64(64<<10)
	if math.Abs(none-math.Exp(-4*each)) > 1e-9 || math.Abs(float64(some)-left+grown) > 1 {
		t.Errorf("nobody leaves with %v, else %v; want %v and %v", none, some, math.Exp(-4*each), Bytes(left-grown))
	}
	for _, r := range live {
		p.Drop(0, r)
	}
	p.Arrive(0, Asked{Need: 1})
	if _, some := p.Leaving(time.Second); some != 0 {
		t.Errorf("one that grows by more than it has gives back %v", some)
	}
}

// Requests whose need has no size need nothing: no division by it.
func TestRequestsThatNeedNothingAreNeverShort(t *testing.T) {
	few, crowd := Arriving{Window: time.Millisecond, Mean: 0.1, block: 16}, Arriving{Window: time.Second, Mean: 1000, block: 16}
	few.count(1)
	crowd.count(1)
	if few.crowd || !crowd.crowd || few.Short(0) != 0 || crowd.Short(0) != 0 {
		t.Errorf("got %v and %v short, want none", few.Short(0), crowd.Short(0))
	}
}
