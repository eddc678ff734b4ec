package kvbudget

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// drawLaw is some law, from one without arrivals to one with many.
func drawLaw(t *rapid.T) peakLaw {
	r := NewRates(testHorizons)
	for i := range rapid.IntRange(0, 60).Draw(t, "arrivals") {
		r.Add(time.Duration(i) * 37 * ms)
	}
	sizes := NewLengths()
	for _, n := range rapid.SliceOfN(rapid.IntRange(1, 5000), 0, 20).Draw(t, "sizes") {
		sizes.Learn(n)
	}
	l := peakLaw{counts: ahead(r, 3000*ms, rapid.IntRange(0, 2).Draw(t, "horizon")), sizes: sizes, unit: 1000, block: 16_000}
	l.stay = rapid.Float64Range(0.05, 1).Draw(t, "stay")
	l.grow = rapid.Float64Range(0, 1e6).Draw(t, "grow")
	l.fall = rapid.Float64Range(0, 1e7).Draw(t, "fall")
	l.fallVar = l.fall * 1e5
	l.size = sizes.mean()*l.unit + 1e4
	l.sizeVar = max(0, sizes.second()-sizes.mean()*sizes.mean()) * l.unit * l.unit
	return l
}

func TestHigherRisesAreLessLikely(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLaw(t)
		last := 1.0
		for x := 0.0; x < 1e9; x = x*1.3 + 5000 {
			p := l.above(x)
			if !(p >= 0 && p <= last+1e-12) {
				t.Fatalf("P(rise > %v) = %v after %v", x, p, last)
			}
			last = p
		}
	})
}

func TestRiseIsTheInverseOfAbove(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLaw(t)
		p := math.Pow(10, -rapid.Float64Range(0.1, 4).Draw(t, "log10"))
		x := l.rise(p)
		slack := l.block + x*2e-3
		if x < 0 || l.above(x+slack) > p+1e-9 || x > slack && l.above(x-slack) < p-1e-9 {
			t.Fatalf("rise(%v) = %v, exceeded with %v (a little less: %v)", p, x, l.above(x), l.above(x-slack))
		}
	})
}

func TestManyArrivalsAreNearASimulatedRunningMaximum(t *testing.T) {
	// A hundred steps of mean 0 and deviation 100: the rise is |N(0, 1000²)|.
	l := peakLaw{counts: Counts{Tail: 1, TailMean: 100, TailVar: 100}, size: 1000, sizeVar: 0, stay: 1, fall: 100_000, block: 1}
	rng := lcg(5)
	var rises []float64
	for range 4000 {
		level, top := 0.0, 0.0
		for range 100 {
			level += 1000 * math.Sqrt(-2*math.Log(rng.float())) * math.Cos(2*math.Pi*rng.float())
			top = max(top, level)
		}
		rises = append(rises, top)
	}
	slices.Sort(rises)
	for _, q := range []float64{0.5, 0.9, 0.95} {
		got, want := l.rise(1-q), rises[int(q*4000)]
		if math.Abs(got-want) > 0.12*want+500 {
			t.Errorf("quantile %v: %v, simulated %v", q, got, want)
		}
	}
}

// TestBothFormsOfTheReflectionMeet: where one takes over from the other a step of 4 %
// made more of a rise likelier than less.
func TestBothFormsOfTheReflectionMeet(t *testing.T) {
	for _, d := range []float64{-3, 0, 3} {
		near, far := reflected(8-d, d, 1), reflected(math.Nextafter(8-d, 9-d), d, 1)
		if off := math.Abs(far/near - 1); off > 1e-9 {
			t.Errorf("drift %v: %v before and %v after, want no step", d, near, far)
		}
	}
}

func TestReflectionHoldsFarOut(t *testing.T) {
	for _, c := range []struct{ x, d, sd float64 }{{1e6, 1e6, 1e3}, {1e9, 1e3, 1}, {10, -1e6, 1}, {5, 1, 0}} {
		if p := reflected(c.x, c.d, c.sd); math.IsNaN(p) || p < 0 || p > 1 {
			t.Errorf("reflected(%v) = %v", c, p)
		}
	}
}
