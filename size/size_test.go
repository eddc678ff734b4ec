package size

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"
)

func TestParseReadsBinaryUnits(t *testing.T) {
	for in, want := range map[string]Bytes{
		"64MiB": 64 * MiB, "1.5 GiB": 3 * GiB / 2, "512KiB": 512 * KiB, "4096B": 4096, "17": 17, " 2GiB ": 2 * GiB,
	} {
		got, err := Parse(in)
		if err != nil || got != want {
			t.Errorf("Parse(%q) = %v, %v, want %v", in, got, err, want)
		}
	}
}

func TestParseNamesTheValueAndTheRule(t *testing.T) {
	for in, want := range map[string]string{
		"64MB":    `size "64MB": want a number with B, KiB, MiB or GiB, such as 640MiB`,
		"":        `size "": want a number with B, KiB, MiB or GiB, such as 640MiB`,
		"NaN":     `size "NaN": want a number with B, KiB, MiB or GiB, such as 640MiB`,
		"-1MiB":   `size "-1MiB": want a value from 0 to 8 EiB`,
		"1e30GiB": `size "1e30GiB": want a value from 0 to 8 EiB`,
	} {
		if _, err := Parse(in); err == nil || err.Error() != want {
			t.Errorf("Parse(%q) error %v, want %s", in, err, want)
		}
	}
}

func TestJSONIsANumberOfBytesOrAText(t *testing.T) {
	for in, want := range map[string]Bytes{"7": 7, "-5": -5, `"64MiB"`: 64 * MiB} {
		var got Bytes
		if err := json.Unmarshal([]byte(in), &got); err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", in, got, err, want)
		}
	}
	if text, err := json.Marshal(64 * MiB); err != nil || string(text) != "67108864" {
		t.Errorf("written as %s, %v", text, err)
	}
	var b Bytes
	if err := json.Unmarshal([]byte("1.5"), &b); err == nil || err.Error() != `size 1.5: want a whole number of bytes or a text such as "640MiB"` {
		t.Errorf("error %v", err)
	}
}

func TestRoundingBracketsTheValue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Bytes(rapid.Int64Range(0, 1<<40).Draw(t, "bytes"))
		unit := Bytes(rapid.Int64Range(1, 1<<30).Draw(t, "unit"))
		lo, hi := b.FloorTo(unit), b.CeilTo(unit)
		if lo > b || hi < b || hi-lo > unit || lo%unit != 0 || hi%unit != 0 {
			t.Fatalf("%d by %d: floor %d, ceil %d", b, unit, lo, hi)
		}
	})
}

func FuzzParseNeverPanics(f *testing.F) {
	for _, s := range []string{"1MiB", "x", "1.5GiB", "-1", "9e99"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if b, err := Parse(s); err == nil && b < 0 {
			t.Fatalf("Parse(%q) = %d, want an error or a value of at least 0", s, b)
		}
	})
}
