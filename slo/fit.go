package slo

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Point is one measured TTFT of a prompt of so many tokens.
type Point struct {
	Tokens int
	TTFT   time.Duration
}

// Fit is a line through points and how far they lie from it.
type Fit struct {
	// Line has a Factor of 1.
	Line
	N int
	// P50 and P90 are quantiles of |seen - fitted|; Spread is the P90 of
	// |seen - fitted| / fitted, which a server that was disturbed makes large.
	P50, P90 time.Duration
	Spread   float64
}

// FitTTFT fits TTFT = Base + PerToken * tokens by Theil and Sen: PerToken is the
// median of the slopes of all pairs of points with different tokens, Base the
// median of what is left (Sen, Journal of the American Statistical Association
// 63, 1968). Up to 29 % of the points may be arbitrarily wrong without moving it
// far; least squares follows a single one. A slope below 0, which no prefill has,
// becomes 0; a Base below 0 makes the line go through the origin.
func FitTTFT(points []Point) (Fit, error) {
	var slopes []float64
	for i, a := range points {
		for _, b := range points[:i] {
			if a.Tokens != b.Tokens {
				slopes = append(slopes, float64(a.TTFT-b.TTFT)/float64(a.Tokens-b.Tokens))
			}
		}
	}
	if len(slopes) == 0 {
		return Fit{}, fmt.Errorf("slo: fit ttft: got %d points of one prompt length, want at least 2 lengths", len(points))
	}
	slope := max(Quantile(slopes, 0.5), 0)
	rest := make([]float64, len(points))
	for i, p := range points {
		rest[i] = float64(p.TTFT) - slope*float64(p.Tokens)
	}
	base := Quantile(rest, 0.5)
	if base < 0 {
		base = 0
		for i, p := range points {
			rest[i] = float64(p.TTFT) / float64(max(p.Tokens, 1))
		}
		slope = Quantile(rest, 0.5)
	}
	fit := Fit{Line: Line{Base: time.Duration(math.Round(base)), PerToken: time.Duration(math.Round(slope)), Factor: 1}, N: len(points)}
	fit.measure(points)
	return fit, nil
}

func (f *Fit) measure(points []Point) {
	away, relative := make([]time.Duration, len(points)), make([]float64, len(points))
	for i, p := range points {
		fitted := f.For(p.Tokens)
		away[i] = (p.TTFT - fitted).Abs()
		relative[i] = float64(away[i]) / float64(max(fitted, 1))
	}
	f.P50, f.P90, f.Spread = Quantile(away, 0.5), Quantile(away, 0.9), Quantile(relative, 0.9)
}

// Spread is the P90 of |value - centre| / centre: how far nine of ten values
// stay from it.
func Spread(values []time.Duration, centre time.Duration) float64 {
	away := make([]float64, len(values))
	for i, v := range values {
		away[i] = math.Abs(float64(v-centre)) / float64(max(centre, 1))
	}
	return Quantile(away, 0.9)
}

// Quantile is the smallest value that at least a share q of the values do not
// exceed (nearest rank: one of the values, never between two); 0 for none. It
// leaves values as they are.
func Quantile[T ~int64 | ~float64](values []T, q float64) T {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Mean is the mean of durations, rounded down; 0 for none.
func Mean(values []time.Duration) time.Duration {
	if len(values) == 0 {
		return 0
	}
	var sum time.Duration
	for _, v := range values {
		sum += v
	}
	return sum / time.Duration(len(values))
}
