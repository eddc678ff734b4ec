package trainer

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/lull-project/lull/size"
)

// vector is one line of testdata/*.jsonl, which the Python side reads too.
type vector struct {
	Name    string          `json:"name"`
	Wire    string          `json:"wire"`
	Decoded json.RawMessage `json:"decoded"`
	Error   *struct {
		What, Where, Rule string
	} `json:"error"`
}

func readVectors(t testing.TB) []vector {
	t.Helper()
	files, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("testdata/*.jsonl: %v, %d files, want some", err, len(files))
	}
	var out []vector
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var v vector
			if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			out = append(out, v)
		}
		_ = f.Close()
	}
	return out
}

// loose reads JSON so that 1 and 1.0 are equal and large integers stay exact.
func loose(t testing.TB, b []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return exact(v)
}

func exact(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = exact(v[k])
		}
	case []any:
		for i := range v {
			v[i] = exact(v[i])
		}
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		f, _ := v.Float64()
		if f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			return int64(f)
		}
		return f
	}
	return v
}

func TestVectorsDecodeAndEncode(t *testing.T) {
	for _, v := range readVectors(t) {
		t.Run(v.Name, func(t *testing.T) {
			m, err := Decode([]byte(v.Wire))
			if v.Error != nil {
				var bad *LineError
				if !errors.As(err, &bad) || *bad != LineError(*v.Error) {
					t.Fatalf("Decode(%s) = %v, %v, want %+v", v.Wire, m, err, *v.Error)
				}
				return
			}
			if err != nil {
				t.Fatalf("Decode(%s): %v", v.Wire, err)
			}
			line, err := Encode(m)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := loose(t, line), loose(t, v.Decoded); !reflect.DeepEqual(got, want) {
				t.Errorf("encodes as %v, want %v", got, want)
			}
			again, err := Decode(line)
			if err != nil || !reflect.DeepEqual(again, m) {
				t.Errorf("decodes again as %+v, %v, want %+v", again, err, m)
			}
		})
	}
}

func TestEveryMessageHasAVector(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range readVectors(t) {
		if m, err := Decode([]byte(v.Wire)); err == nil {
			seen[m.Type()] = true
		}
	}
	for _, typ := range types {
		if !seen[typ.name] {
			t.Errorf("no vector in testdata for %s", typ.name)
		}
	}
}

func TestProtocolExamplesAreValid(t *testing.T) {
	doc, err := os.ReadFile("PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i, block := range strings.Split(string(doc), "```json\n") {
		if i == 0 {
			continue
		}
		body, _, _ := strings.Cut(block, "```")
		for line := range strings.Lines(body) {
			m, err := Decode([]byte(line))
			if err != nil {
				t.Errorf("example %s: %v", line, err)
				continue
			}
			seen[m.Type()] = true
		}
	}
	for _, typ := range types {
		if !seen[typ.name] {
			t.Errorf("PROTOCOL.md has no example of %s", typ.name)
		}
	}
}

func TestDecodeRefusesBytesThatAreNoUTF8(t *testing.T) {
	_, err := Decode([]byte("{\"type\":\"bye\",\"reason\":\"\xff\"}"))
	want := "trainer: refuse line json: not valid, want one JSON object in UTF-8; an error line answers it"
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestEncodeNamesWhatCannotBeWritten(t *testing.T) {
	for _, c := range []struct {
		m    Message
		want string
	}{
		{Budget{Bytes: -1}, "trainer: encode budget: bytes is negative; the line is not sent"},
		{Budget{Epoch: 1 << 63}, "trainer: encode budget: epoch is above 9223372036854775807; the line is not sent"},
		{Pace{Duty: math.NaN()}, "trainer: encode pace: duty is not finite; the line is not sent"},
		{Bye{Reason: strings.Repeat("x", MaxLine)}, "trainer: encode bye: 65563 bytes, want at most 65536; the line is not sent"},
	} {
		if _, err := Encode(c.m); err == nil || err.Error() != c.want {
			t.Errorf("Encode(%s) error %v, want %s", c.m.Type(), err, c.want)
		}
	}
}

func TestDurationsRoundUpSoThatHurryIsNeverLost(t *testing.T) {
	for within, want := range map[time.Duration]time.Duration{
		1:                     time.Microsecond,
		time.Microsecond:      time.Microsecond,
		1500:                  2 * time.Microsecond,
		0:                     0,
		-5 * time.Millisecond: time.Microsecond,
		12 * time.Millisecond: 12 * time.Millisecond,
	} {
		line, err := Encode(Budget{Epoch: 1, Within: within})
		if err != nil {
			t.Fatal(err)
		}
		m, err := Decode(line)
		if err != nil || m.(Budget).Within != want {
			t.Errorf("within %v arrives as %+v, %v, want %v", within, m, err, want)
		}
	}
}

func TestLongestDurationStaysLong(t *testing.T) {
	m, err := Decode([]byte(`{"type":"budget","epoch":1,"bytes":1,"within_us":9223372036854775807}`))
	if err != nil || m.(Budget).Within != math.MaxInt64 {
		t.Errorf("got %+v, %v, want the longest duration", m, err)
	}
}

func FuzzDecodeNeverPanicsAndRoundTrips(f *testing.F) {
	for _, v := range readVectors(f) {
		f.Add([]byte(v.Wire))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := Decode(line)
		if err != nil {
			var bad *LineError
			if !errors.As(err, &bad) {
				t.Fatalf("error %T %v, want a *LineError", err, err)
			}
			return
		}
		out, err := Encode(m)
		if err != nil {
			if len(line) < MaxLine/8 && !strings.Contains(err.Error(), "is negative") {
				t.Fatalf("%s decodes to %+v, which does not encode: %v", line, m, err)
			}
			return
		}
		again, err := Decode(out)
		if err != nil {
			t.Fatalf("%s encodes as %s: %v", line, out, err)
		}
		twice, err := Encode(again)
		if err != nil || !bytes.Equal(out, twice) {
			t.Fatalf("%s, then %s: %v", out, twice, err)
		}
	})
}

func FuzzLinesSplitAnywhereGiveTheSameLines(f *testing.F) {
	f.Add([]byte("{\"type\":\"ping\"}\n{}\n\nhalf"), uint8(3))
	f.Fuzz(func(t *testing.T, stream []byte, step uint8) {
		if len(stream) > MaxLine {
			return
		}
		want := bytes.SplitAfter(stream, []byte("\n"))
		want = want[:len(want)-1] // what follows the last newline is no line
		l := newLines(iotest.OneByteReader(bytes.NewReader(stream)))
		if step > 0 {
			l = newLines(&stepReader{stream, int(step)})
		}
		for i := 0; ; i++ {
			line, err := l.next()
			if err != nil {
				if i != len(want) || !errors.Is(err, io.EOF) {
					t.Fatalf("ended after %d lines with %v, want %d and EOF", i, err, len(want))
				}
				return
			}
			if i >= len(want) || !bytes.Equal(line, want[i]) {
				t.Fatalf("line %d = %q, want one of %q", i, line, want)
			}
		}
	})
}

// stepReader gives step bytes at a time.
type stepReader struct {
	rest []byte
	step int
}

func (r *stepReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	n := min(len(p), r.step, len(r.rest))
	copy(p, r.rest[:n])
	r.rest = r.rest[n:]
	return n, nil
}

func TestLongestLineFitsAndALongerOneDoesNot(t *testing.T) {
	fits := strings.Repeat(" ", MaxLine-1) + "\n"
	if line, err := newLines(strings.NewReader(fits)).next(); err != nil || len(line) != MaxLine {
		t.Errorf("%d bytes: %v, want the line", len(fits), err)
	}
	if _, err := newLines(strings.NewReader(" " + fits)).next(); !errors.Is(err, errTooLong) {
		t.Errorf("%d bytes: %v, want %v", len(fits)+1, err, errTooLong)
	}
}

func BenchmarkEncodeBudget(b *testing.B) {
	m := Budget{Epoch: 7<<32 | 1, Bytes: 2 * size.GiB, Within: 12 * time.Millisecond, Reason: "arrival"}
	for b.Loop() {
		if _, err := Encode(m); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeAck(b *testing.B) {
	line := []byte(`{"type":"ack","epoch":30064771073,"held":2080374784,"waited_us":180,"freed_us":2400,"how":"drop","samples_discarded":0,"spans":[]}`)
	for b.Loop() {
		if _, err := Decode(line); err != nil {
			b.Fatal(err)
		}
	}
}
