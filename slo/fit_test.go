package slo

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestFitFindsALineThroughExactPoints(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Line{Base: time.Duration(rapid.IntRange(0, 1e9).Draw(t, "base")), PerToken: time.Duration(rapid.IntRange(0, 1e6).Draw(t, "per token")), Factor: 1}
		lengths := rapid.SliceOfNDistinct(rapid.IntRange(1, 1<<16), 2, 12, rapid.ID[int]).Draw(t, "lengths")
		var points []Point
		for _, n := range lengths {
			points = append(points, Point{n, want.For(n)})
		}
		got, err := FitTTFT(points)
		if err != nil || got.Line != want || got.P90 != 0 || got.Spread != 0 || got.N != len(points) {
			t.Fatalf("got %+v, %v, want %+v", got, err, want)
		}
	})
}

func TestFitIsNotMovedByAQuarterOfWildPoints(t *testing.T) {
	line := Line{Base: 40 * ms, PerToken: 100 * time.Microsecond}
	var points []Point
	for i := range 40 {
		n := 64 * (1 + i%4)
		p := Point{n, line.For(n)}
		if i%8 == 0 || i%8 == 5 {
			p.TTFT += time.Duration(i+1) * 100 * ms
		}
		points = append(points, p)
	}
	got, err := FitTTFT(points)
	if err != nil || (got.Base-line.Base).Abs() > ms || (got.PerToken-line.PerToken).Abs() > 5*time.Microsecond {
		t.Errorf("got %+v, %v, want about %+v", got, err, line)
	}
	if got.Spread < 1 {
		t.Errorf("spread %v, want it to show the wild points", got.Spread)
	}
}

func TestFitNeedsTwoPromptLengths(t *testing.T) {
	_, err := FitTTFT([]Point{{128, ms}, {128, 2 * ms}})
	want := "slo: fit ttft: got 2 points of one prompt length, want at least 2 lengths"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestFitHasNoNegativeTimes(t *testing.T) {
	falling, err := FitTTFT([]Point{{100, 20 * ms}, {200, 10 * ms}})
	if err != nil || falling.PerToken != 0 || falling.Base != 10*ms {
		t.Errorf("falling: got %+v, %v, want a constant of 10ms", falling, err)
	}
	steep, err := FitTTFT([]Point{{100, 10 * ms}, {200, 40 * ms}})
	if err != nil || steep.Base != 0 || steep.PerToken != 100*time.Microsecond {
		t.Errorf("steep: got %+v, %v, want 100µs a token through the origin", steep, err)
	}
}

func TestQuantileIsOneOfTheValuesThatAShareDoesNotExceed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Map(rapid.Int64Range(0, 20), func(v int64) time.Duration { return time.Duration(v) }), 1, 40).Draw(t, "values")
		q := rapid.Float64Range(0, 1).Draw(t, "q")
		before := slices.Clone(values)
		got := Quantile(values, q)
		below, under := 0, 0
		for _, v := range values {
			if v <= got {
				below++
			}
			if v < got {
				under++
			}
		}
		need := math.Ceil(q * float64(len(values)))
		if !slices.Contains(values, got) || float64(below) < need || under > 0 && float64(under) >= need {
			t.Fatalf("Quantile(%v, %v) = %v", values, q, got)
		}
		if !slices.Equal(values, before) {
			t.Fatal("the values were reordered")
		}
	})
	if got := Quantile([]time.Duration(nil), 0.5); got != 0 {
		t.Errorf("quantile of nothing %v, want 0", got)
	}
}

func TestSpreadIsWhatNineOfTenStayWithin(t *testing.T) {
	values := []time.Duration{100, 100, 100, 100, 110, 90, 100, 100, 120, 900}
	if got := Spread(values, 100); got != 0.2 {
		t.Errorf("got %v, want 0.2: the one wild value of ten does not count", got)
	}
	if got := Mean(values); got != 182 {
		t.Errorf("mean %v, want 182", got)
	}
	if got := Mean(nil); got != 0 {
		t.Errorf("mean of nothing %v, want 0", got)
	}
}
