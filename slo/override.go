package slo

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// Bounds are what a client may ask for itself; a zero Max lets it ask for
// nothing.
type Bounds struct {
	Min, Max time.Duration
}

// Clamp brings an asked limit into the bounds; changed says that it was outside.
func (b Bounds) Clamp(asked time.Duration) (limit time.Duration, changed bool) {
	limit = min(max(asked, b.Min), b.Max)
	return limit, limit != asked
}

// ParseMillis reads a header such as x-slo-ttft-ms: milliseconds as a decimal
// number above 0 and at most a day. No sign, exponent, unit or spaces.
func ParseMillis(text string) (time.Duration, error) {
	const most = 24 * time.Hour
	for _, c := range []byte(text) {
		if (c < '0' || c > '9') && c != '.' {
			return 0, millisError(text)
		}
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || v*float64(time.Millisecond) < 1 || v > float64(most/time.Millisecond) {
		return 0, millisError(text)
	}
	return time.Duration(math.Round(v * float64(time.Millisecond))), nil
}

func millisError(text string) error {
	return fmt.Errorf("got %.40q, want milliseconds such as 250, above 0 and at most a day", text)
}
