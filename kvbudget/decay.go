package kvbudget

import (
	"math"
	"time"
)

// decay is what is left of a weight after that time.
func decay(d, constant time.Duration) float64 {
	return math.Exp(-max(0, d).Seconds() / constant.Seconds())
}

// less is sum - x, and 0 where only rounding is left of it.
func less(sum, x, least float64) float64 {
	if d := sum - x; d > max(least, sum*1e-12) {
		return d
	}
	return 0
}
