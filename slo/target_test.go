package slo

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

func TestTargetOfRefusesWhatIsNoShare(t *testing.T) {
	for share, want := range map[float64]Target{0.99: 990_000, 1: HardLimit, 0.5: 500_000, 0.999999: 999_999, 0.000001: 1} {
		if got, err := TargetOf(share); err != nil || got != want {
			t.Errorf("TargetOf(%v) = %d, %v, want %d", share, got, err, want)
		}
	}
	for _, c := range []struct {
		share float64
		text  string
	}{{0, "0"}, {-0.5, "-0.5"}, {99, "99"}, {1.000001, "1.000001"}, {0.9999999, "0.9999999"}} {
		want := "got " + c.text + ", want a share in (0, 1] with at most 6 digits, such as 0.99; 1 is a hard limit"
		if _, err := TargetOf(c.share); err == nil || err.Error() != want {
			t.Errorf("TargetOf(%v): got %v, want %s", c.share, err, want)
		}
	}
}

func TestTargetPrintsInPercent(t *testing.T) {
	for target, want := range map[Target]string{990_000: "99%", 999_500: "99.95%", HardLimit: "100%", 1: "0.0001%"} {
		if got := target.String(); got != want {
			t.Errorf("%d: got %s, want %s", uint32(target), got, want)
		}
	}
	if got := Target(990_000).Share(); got != 0.99 {
		t.Errorf("share %v, want 0.99", got)
	}
}

func TestAllowedMissesEqualExactArithmetic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64().Draw(t, "n")
		target := Target(rapid.Uint32Range(1, uint32(HardLimit)).Draw(t, "target"))
		want := new(big.Int).Mul(new(big.Int).SetUint64(n), big.NewInt(int64(HardLimit-target)))
		want.Div(want, big.NewInt(int64(HardLimit)))
		if got := target.Allowed(n); got != want.Uint64() {
			t.Fatalf("%v.Allowed(%d) = %d, want %d", target, n, got, want)
		}
	})
}

func TestOneMissOfAHundredIsWithin99Percent(t *testing.T) {
	for _, c := range []struct {
		tally      Tally
		target     Target
		met        bool
		left, burn float64
		burns      bool
	}{
		{Tally{Within: 99, Beyond: 1}, 990_000, true, 0, 1, true},
		{Tally{Within: 98, Beyond: 1}, 990_000, false, 1 - 100.0/99, 100.0 / 99, true},
		{Tally{Within: 99, Missing: 1}, 990_000, true, 0, 1, true},
		{Tally{Within: 98, Missing: 2}, 990_000, false, -1, 2, true},
		{Tally{Within: 80, Beyond: 10, Missing: 10}, 990_000, false, -19, 20, true},
		{Tally{Within: 100}, 990_000, true, 1, 0, true},
		{Tally{Within: 5}, HardLimit, true, 1, 0, true},
		{Tally{Within: 1_000_000, Beyond: 1}, HardLimit, false, 0, 0, false},
	} {
		met, ok := c.tally.Met(c.target)
		left, leftOK := c.tally.BudgetLeft(c.target)
		burn, burns := c.tally.BurnRate(c.target)
		if !ok || !leftOK || met != c.met || !near(left, c.left) || !near(burn, c.burn) || burns != c.burns {
			t.Errorf("%+v under %v: met %v, left %v, burn %v %v; want %v, %v, %v %v", c.tally, c.target, met, left, burn, burns, c.met, c.left, c.burn, c.burns)
		}
	}
}

func TestNothingIsKnownBeforeTheFirstSample(t *testing.T) {
	var none Tally
	if _, ok := none.Attainment(); ok {
		t.Error("attainment of nothing is known")
	}
	if _, ok := none.Met(DefaultTarget); ok {
		t.Error("met is known of nothing")
	}
	if _, ok := none.BudgetLeft(DefaultTarget); ok {
		t.Error("the budget of nothing is known")
	}
	if _, ok := none.BurnRate(DefaultTarget); ok {
		t.Error("the burn rate of nothing is known")
	}
}

func near(a, b float64) bool { return a-b < 1e-12 && b-a < 1e-12 }
