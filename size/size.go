package size

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a number of bytes of memory. It may be negative where it is a
// difference.
type Bytes int64

// Binary multiples (IEC 80000-13).
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
)

// String prints the largest binary unit that leaves at least one whole unit,
// with one decimal: "2.0GiB", "15.5MiB", "512B".
func (b Bytes) String() string {
	mag := b
	if mag < 0 {
		mag = -mag
	}
	switch {
	case mag >= GiB:
		return fmt.Sprintf("%.1fGiB", float64(b)/float64(GiB))
	case mag >= MiB:
		return fmt.Sprintf("%.1fMiB", float64(b)/float64(MiB))
	case mag >= KiB:
		return fmt.Sprintf("%.1fKiB", float64(b)/float64(KiB))
	}
	return fmt.Sprintf("%dB", int64(b))
}

// Parse reads "64MiB", "1.5 GiB", "512KiB", "4096B" or a plain number of bytes.
// Decimal units (MB, GB) are refused: their meaning differs from what tools
// print.
func Parse(s string) (Bytes, error) {
	t := strings.TrimSpace(s)
	unit, factor := "", Bytes(1)
	for _, u := range []struct {
		suffix string
		factor Bytes
	}{{"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}, {"B", 1}} {
		if strings.HasSuffix(t, u.suffix) {
			unit, factor = u.suffix, u.factor
			break
		}
	}
	number := strings.TrimSpace(strings.TrimSuffix(t, unit))
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return 0, fmt.Errorf("size %q: want a number with B, KiB, MiB or GiB, such as 640MiB", s)
	}
	v := f * float64(factor)
	if v < 0 || v >= math.MaxInt64 {
		return 0, fmt.Errorf("size %q: want a value from 0 to 8 EiB", s)
	}
	return Bytes(math.Round(v)), nil
}

// UnmarshalText reads what Parse reads.
func (b *Bytes) UnmarshalText(text []byte) error {
	v, err := Parse(string(text))
	if err != nil {
		return err
	}
	*b = v
	return nil
}

// UnmarshalJSON reads a whole number of bytes, as Bytes is written, or a text
// that Parse reads.
func (b *Bytes) UnmarshalJSON(text []byte) error {
	if n, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		*b = Bytes(n)
		return nil
	}
	s, err := strconv.Unquote(string(text))
	if err != nil {
		return fmt.Errorf("size %s: want a whole number of bytes or a text such as \"640MiB\"", text)
	}
	return b.UnmarshalText([]byte(s))
}

// CeilTo rounds b up to a whole number of units; a unit of 0 leaves b as it is.
func (b Bytes) CeilTo(unit Bytes) Bytes {
	if unit <= 0 {
		return b
	}
	return (b + unit - 1) / unit * unit
}

// FloorTo rounds b down to a whole number of units; a unit of 0 leaves b as it is.
func (b Bytes) FloorTo(unit Bytes) Bytes {
	if unit <= 0 {
		return b
	}
	return b / unit * unit
}
