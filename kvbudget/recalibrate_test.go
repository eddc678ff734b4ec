package kvbudget

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestBeforeAnyOutcomeTheLawIsBelieved(t *testing.T) {
	c := newRecalibration()
	for _, q := range []float64{0.5, 0.9, 0.95, 0.99} {
		if p := c.exceed(0, q); math.Abs(p-(1-q)) > 0.006 {
			t.Errorf("level %v: exceeded with %v, want %v", q, p, 1-q)
		}
	}
}

func TestLevelsFollowWhatCame(t *testing.T) {
	c := newRecalibration()
	rng := lcg(9)
	for range 4000 { // outcomes twice as rare as the law says
		p := rng.float() / 2
		c.learn(2, p, p, c.exceed(2, tunedLevel))
	}
	if p := c.exceed(2, 0.95); math.Abs(p-0.025) > 0.006 {
		t.Errorf("in the regime seen: exceeded with %v, want 0.025", p)
	}
	if p := c.exceed(1, 0.95); math.Abs(p-0.025) > 0.01 {
		t.Errorf("in a regime not seen: exceeded with %v, want what all show, 0.025", p)
	}
	for range 20_000 {
		p := rng.float()
		c.learn(2, p, p, c.exceed(2, tunedLevel))
	}
	if p := c.exceed(2, 0.95); math.Abs(p-0.05) > 0.012 {
		t.Errorf("after the law became right: exceeded with %v, want 0.05", p)
	}
}

func TestShareIsTheInverseOfExceed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newRecalibration()
		rng := lcg(rapid.Uint64().Draw(t, "seed"))
		power := rapid.Float64Range(0.3, 3).Draw(t, "power")
		for range rapid.IntRange(0, 300).Draw(t, "n") {
			p := math.Pow(rng.float(), power)
			c.learn(0, p, p, 0.05)
		}
		c.shift[0] = 0
		q := rapid.Float64Range(0.01, 0.99).Draw(t, "q")
		if got := c.share(0, c.exceed(0, q)); math.Abs(got-q) > 1e-6 {
			t.Fatalf("share(exceed(%v)) = %v", q, got)
		}
	})
}

func TestAtomIsSpreadOverItsProbabilities(t *testing.T) {
	c := newRecalibration()
	for range 3000 { // always the atom that holds the lower 60 %
		c.learn(0, 0.4, 1, 0.05)
	}
	if q := c.share(0, 0.7); math.Abs(q-0.5) > 0.05 {
		t.Errorf("half of an atom's outcomes lie below its middle, got %v", q)
	}
}

func TestRecentForgets(t *testing.T) {
	r := newRecent(3, 100)
	if r.share(0) != 0 || r.below(1) != 0.5 {
		t.Error("an empty histogram has shares")
	}
	for range 5000 {
		r.add(0)
	}
	for range 300 {
		r.add(2)
	}
	if s := r.share(2); s < 0.93 || s > 0.97 {
		t.Errorf("share %v after three memories, want 1-exp(-3)", s)
	}
	if n := r.count(); n < 98 || n > 101 {
		t.Errorf("stands for %v values, want its memory", n)
	}
}
