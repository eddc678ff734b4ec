package slo

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const ms = time.Millisecond

func TestSlackIsThePromiseLessTimeGoneAndPrefill(t *testing.T) {
	p := Objective{TTFT: Constant(135 * ms)}.Promise()
	for _, c := range []struct{ gone, prefill, want time.Duration }{
		{0, 35 * ms, 100 * ms},
		{50 * ms, 35 * ms, 50 * ms},
		{200 * ms, 35 * ms, -100 * ms},
	} {
		if got := p.Slack(7, c.gone, c.prefill); got != c.want {
			t.Errorf("Slack(7, %v, %v) = %v, want %v", c.gone, c.prefill, got, c.want)
		}
	}
	if got := (Promise{}).Slack(7, 5*ms, 1*ms); got != 0 {
		t.Errorf("Slack without a promise = %v, want 0", got)
	}
}

func TestLimitGrowsWithThePromptAndAConstantDoesNot(t *testing.T) {
	for _, c := range []struct {
		line   Line
		tokens int
		want   time.Duration
	}{
		{Line{}, 1000, 0},
		{Constant(680 * ms), 0, 680 * ms},
		{Constant(680 * ms), 1 << 20, 680 * ms},
		{Line{Base: 35 * ms, PerToken: 80 * time.Microsecond, Factor: 4}, 0, 140 * ms},
		{Line{Base: 35 * ms, PerToken: 80 * time.Microsecond, Factor: 4}, 1000, 460 * ms},
		{Line{Base: 35 * ms, PerToken: 80 * time.Microsecond}, 1000, 115 * ms},
		{Line{Base: 35 * ms, PerToken: 80 * time.Microsecond}, -1, 35 * ms},
		{Line{Base: time.Hour, PerToken: time.Hour, Factor: 1000}, 1 << 30, math.MaxInt64},
	} {
		if got := c.line.For(c.tokens); got != c.want {
			t.Errorf("%+v.For(%d) = %v, want %v", c.line, c.tokens, got, c.want)
		}
	}
}

func TestLimitsAreShownInWords(t *testing.T) {
	o := Objective{TTFT: Line{Base: 35 * ms, PerToken: 80 * time.Microsecond, Factor: 4}, TBT: 76 * ms, E2E: time.Minute, Success: HardLimit}
	for k, want := range map[Kind]string{TTFT: "(35ms + 80us a token) * 4", TBT: "76ms", TPOT: "76ms", E2E: "1m0s", Success: ""} {
		if got := o.Limit(k); got != want {
			t.Errorf("%v: got %q, want %q", k, got, want)
		}
		if got := (Objective{}).Limit(k); got != "" {
			t.Errorf("%v without a limit: got %q", k, got)
		}
	}
	if got := (Line{Base: 170 * ms, Factor: 4}).String(); got != "170ms * 4" {
		t.Errorf("got %q, want the constant times the factor", got)
	}
}

func TestLineEqualsExactArithmetic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Line{Base: time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "base")), PerToken: time.Duration(rapid.Int64Range(0, int64(ms)).Draw(t, "per"))}
		quarters := rapid.Int64Range(1, 40).Draw(t, "quarters") // factors that a float64 holds exactly
		l.Factor = float64(quarters) / 4
		tokens := rapid.Int64Range(0, 1<<20).Draw(t, "tokens")
		want := new(big.Int).Mul(big.NewInt(int64(l.PerToken)), big.NewInt(tokens))
		want.Add(want, big.NewInt(int64(l.Base))).Mul(want, big.NewInt(quarters))
		// Rounded half up: (4x + 2) / 4.
		want.Add(want, big.NewInt(2)).Div(want, big.NewInt(4))
		if got := l.For(int(tokens)); int64(got) != want.Int64() {
			t.Fatalf("%+v.For(%d) = %d, want %d", l, tokens, got, want)
		}
	})
}

func TestFirstObjectiveThatFitsModelAndTierIsPicked(t *testing.T) {
	all := []Objective{{Name: "both", Model: "m", Tier: "gold"}, {Name: "model", Model: "m"}, {Name: "tier", Tier: "gold"}, {Name: "default"}}
	for _, c := range []struct{ model, tier, want string }{
		{"m", "gold", "both"}, {"m", "", "model"}, {"m", "batch", "model"}, {"x", "gold", "tier"}, {"x", "", "default"}, {"", "", "default"},
	} {
		if got := all[Pick(all, c.model, c.tier, Moment{})].Name; got != c.want {
			t.Errorf("Pick(%q, %q) = %s, want %s", c.model, c.tier, got, c.want)
		}
	}
	if got := Pick(all[:3], "x", "", Moment{}); got != -1 {
		t.Errorf("Pick without a match = %d, want -1", got)
	}
}

func TestClampKeepsAskedLimitsInBounds(t *testing.T) {
	b := Bounds{Min: 50 * ms, Max: 2 * time.Second}
	for _, c := range []struct {
		asked, want time.Duration
		changed     bool
	}{{10 * ms, 50 * ms, true}, {50 * ms, 50 * ms, false}, {300 * ms, 300 * ms, false}, {time.Hour, 2 * time.Second, true}} {
		if got, changed := b.Clamp(c.asked); got != c.want || changed != c.changed {
			t.Errorf("Clamp(%v) = %v, %v, want %v, %v", c.asked, got, changed, c.want, c.changed)
		}
	}
}

func TestMillisAreADecimalNumberAndNothingElse(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"250": 250 * ms, "0.5": 500 * time.Microsecond, "86400000": 24 * time.Hour, "007": 7 * ms, "12.25": 12250 * time.Microsecond,
	} {
		if got, err := ParseMillis(text); err != nil || got != want {
			t.Errorf("ParseMillis(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "+5", "1e3", "5ms", " 5", "NaN", "Inf", "1.2.3", ".", "86400001", "0.0000001", "0x10", "1_000"} {
		_, err := ParseMillis(text)
		want := `got "` + text + `", want milliseconds such as 250, above 0 and at most a day`
		if err == nil || err.Error() != want {
			t.Errorf("ParseMillis(%q): got %v, want %s", text, err, want)
		}
	}
}

func FuzzParseMillisIsWithinADay(f *testing.F) {
	f.Add("250")
	f.Add("1.5")
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := ParseMillis(text); err == nil && (d < 1 || d > 24*time.Hour) {
			t.Fatalf("ParseMillis(%q) = %v, want 1ns to 24h", text, d)
		}
	})
}
