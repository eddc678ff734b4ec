package telemetry

import (
	"strings"
	"unicode/utf8"
)

// maxLabel bounds a label's value, in bytes: clients and trainers choose some.
const maxLabel = 256

// clean makes label values that Prometheus takes, whatever was said: it panics
// on a value that is no UTF-8.
func clean(values ...string) []string {
	for i, v := range values {
		values[i] = text(v, maxLabel)
	}
	return values
}

// text is v as valid UTF-8, at most that many bytes of it. It ends at a rune
// boundary, also where v itself was cut inside a rune; other bad bytes become
// U+FFFD.
func text(v string, most int) string {
	v = wholeRunes(v[:min(len(v), most)])
	if utf8.ValidString(v) {
		return v
	}
	v = strings.ToValidUTF8(v, string(utf8.RuneError))
	return wholeRunes(v[:min(len(v), most)])
}

// wholeRunes drops the beginning of a rune at the end of v.
func wholeRunes(v string) string {
	for n := 1; n < utf8.UTFMax && n <= len(v); n++ {
		if tail := v[len(v)-n:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRuneInString(tail) {
				return v[:len(v)-n]
			}
			break
		}
	}
	return v
}
