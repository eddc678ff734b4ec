package telemetry

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"pgregory.net/rapid"
)

// drawLatencies draws durations of every size that a request can take.
func drawLatencies(t *rapid.T, name string) []time.Duration {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) time.Duration {
		return time.Duration(math.Pow(10, rapid.Float64Range(2, 13).Draw(t, "decades")))
	}), 0, 60).Draw(t, name)
}

func recorded(samples ...time.Duration) *Latencies {
	l := &Latencies{}
	for _, d := range samples {
		l.Record(d)
	}
	return l
}

var shares = []float64{0, 0.1, 0.5, 0.9, 0.99, 0.999, 1}

func TestQuantilesAreThoseOfAllSamplesWithinATenthOfAPercent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		samples := drawLatencies(t, "samples")
		got, n := recorded(samples...).Quantiles(shares...)
		if int(n) != len(samples) || (got == nil) != (n == 0) {
			t.Fatalf("%d samples and %v, want %d", n, got, len(samples))
		}
		slices.Sort(samples)
		for i, d := range got {
			rank := max(int(math.Ceil(shares[i]*float64(len(samples)))), 1)
			want := min(samples[rank-1], hdrMost)
			if d < want-time.Microsecond || d > want+want/1000+time.Microsecond {
				t.Fatalf("quantile %v of %v: got %v, want %v", shares[i], samples, d, want)
			}
		}
	})
}

func TestMergeEqualsRecordingAllInOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawLatencies(t, "a"), drawLatencies(t, "b")
		merged, other := recorded(a...), recorded(b...)
		if err := merged.Merge(other); err != nil {
			t.Fatal(err)
		}
		whole := recorded(slices.Concat(a, b)...)
		got, n := merged.Quantiles(shares...)
		want, all := whole.Quantiles(shares...)
		if n != all || !slices.Equal(got, want) || merged.Longest() != whole.Longest() {
			t.Fatalf("merged %v of %d, want %v of %d", got, n, want, all)
		}
		if n > 0 && !merged.hdr.Equals(whole.hdr) {
			t.Fatal("the counts of some values differ")
		}
		if _, left := other.Quantiles(0.5); int(left) != len(b) {
			t.Fatalf("the other has %d samples, want its own %d", left, len(b))
		}
	})
}

func TestMergeWithItselfDoublesAndDoesNotHang(t *testing.T) {
	l := recorded(time.Second)
	if err := l.Merge(l); err != nil {
		t.Fatal(err)
	}
	if _, n := l.Quantiles(0.5); n != 2 {
		t.Errorf("%d samples, want 2", n)
	}
}

func TestLatenciesOutOfRangeCountAsTheLimits(t *testing.T) {
	l := recorded(-time.Second, 3*time.Hour)
	got, n := l.Quantiles(0.5, 1)
	if n != 2 || got[0] != 0 || got[1] < hdrMost || got[1] > hdrMost+hdrMost/1000 || l.Longest() != 3*time.Hour {
		t.Errorf("got %v of %d, longest %v, want 0 and an hour, and 3h exactly", got, n, l.Longest())
	}
}

func TestMergeSaysHowManySamplesWereOutOfRange(t *testing.T) {
	wider := &Latencies{hdr: hdrhistogram.New(1, (10 * hdrMost).Microseconds(), hdrDigits)}
	for range 3 {
		if err := wider.hdr.RecordValue((9 * hdrMost).Microseconds()); err != nil {
			t.Fatal(err)
		}
	}
	const want = "telemetry: merge latencies: got 3 samples out of range, want none; they are lost"
	if err := recorded(time.Second).Merge(wider); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
