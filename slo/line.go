package slo

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Line is a limit that grows with the prompt: (Base + PerToken * tokens) *
// Factor. A constant is a line without PerToken; the zero Line is no promise.
type Line struct {
	Base, PerToken time.Duration
	// Factor multiplies the whole; 0 means 1.
	Factor float64
}

// Constant is the same limit for every prompt.
func Constant(d time.Duration) Line { return Line{Base: d} }

// For is the limit of a prompt of so many tokens, rounded to the nanosecond; 0
// means no promise. What is too long for a Duration becomes the longest one.
func (l Line) For(tokens int) time.Duration {
	factor := l.Factor
	if factor == 0 {
		factor = 1
	}
	// A Duration of under 104 days is exact in a float64.
	limit := math.Round((float64(l.Base) + float64(l.PerToken)*float64(max(tokens, 0))) * factor)
	if limit >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(max(limit, 0))
}

// String is the limit in words: 680ms, or (35ms + 80us a token) * 4.
func (l Line) String() string {
	text := ascii(l.Base)
	if l.PerToken != 0 {
		text = "(" + text + " + " + ascii(l.PerToken) + " a token)"
	}
	if l.Factor != 0 && l.Factor != 1 {
		text += " * " + strconv.FormatFloat(l.Factor, 'g', -1, 64)
	}
	return text
}

func ascii(d time.Duration) string { return strings.ReplaceAll(d.String(), "µ", "u") }
