package demo

import (
	"math"
	"slices"
	"time"
)

// Quantiles are taken from all values: nothing is trimmed, nothing interpolated.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// quantilesMS is the quantiles in milliseconds; zero for no values.
func quantilesMS(values []time.Duration) Quantiles {
	s := slices.Clone(values)
	slices.Sort(s)
	return Quantiles{P50: ms(quantile(s, 0.50)), P99: ms(quantile(s, 0.99)), Max: ms(quantile(s, 1))}
}

// quantile is the nearest-rank quantile of a sorted list: the smallest value
// that at least a fraction q of all values does not exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

func mean(values []time.Duration) time.Duration {
	if len(values) == 0 {
		return 0
	}
	var sum time.Duration
	for _, v := range values {
		sum += v
	}
	return sum / time.Duration(len(values))
}

// ms is milliseconds rounded to a microsecond.
func ms(d time.Duration) float64 { return math.Round(float64(d)/float64(time.Microsecond)) / 1000 }

// round4 keeps figures readable in JSON.
func round4(v float64) float64 { return math.Round(v*1e4) / 1e4 }
