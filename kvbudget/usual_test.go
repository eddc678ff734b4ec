package kvbudget

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestPointIsTheInverseOfTheSurvival(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := NewLengths()
		for _, n := range rapid.SliceOfN(rapid.IntRange(1, 3000), 0, 40).Draw(t, "lengths") {
			l.Learn(n)
		}
		q := rapid.Float64Range(0.01, 0.99).Draw(t, "q")
		x := l.point(q)
		if s, _, _ := l.at(x + 1); x > 0 && math.Abs(1-s-q) > 1e-6 || x == 0 && 1-s < q-1e-6 {
			t.Fatalf("point(%v) = %v, at which a share %v is done", q, x, 1-s)
		}
	})
}

func TestForecastsAreAveragedByWhatTheyLost(t *testing.T) {
	u := newUsual()
	if w := u.share(); w != 0 {
		t.Errorf("before any outcome the usual forecast has share %v", w)
	}
	for i := range 4000 {
		u.learn(float64(100+i%10), 500, 110, 1)
	}
	if w := u.share(); w < 0.99 {
		t.Errorf("a law that is far off leaves the usual forecast a share of %v", w)
	}
	for i := range 20_000 {
		u.learn(float64(100+i%10), 110, 500, 1)
	}
	if w := u.share(); w > 0.01 {
		t.Errorf("a usual forecast that is far off has share %v", w)
	}
	if q := u.rise(0.5, 1); q < 95 || q > 112 {
		t.Errorf("the usual rise is %v, want about 104", q)
	}
}

func TestPinballWeighsMissesByTheTunedLevel(t *testing.T) {
	if a, b := pinball(10, 14), pinball(14, 10); math.Abs(a-3.8) > 1e-9 || math.Abs(b-0.2) > 1e-9 {
		t.Errorf("got %v short and %v too many, want 3.8 and 0.2", a, b)
	}
}
