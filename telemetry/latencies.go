package telemetry

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// hdrMost is the longest duration that is told apart; a longer one counts as it.
	hdrMost = time.Hour
	// hdrDigits keeps quantiles within 0.1 % of the sample.
	hdrDigits = 3
)

// Latencies keeps durations in an HDR histogram, in microseconds, in about 180
// KB whatever their number. It is for quantiles; whether an objective was met is
// counted exactly elsewhere (package slo) and never read from here. The zero
// value is empty and ready.
type Latencies struct {
	mu      sync.Mutex
	hdr     *hdrhistogram.Histogram // nil before the first sample
	longest time.Duration
}

// Record adds one duration, rounded down to the microsecond; a negative one
// counts as 0.
func (l *Latencies) Record(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ready()
	l.longest = max(l.longest, d)
	_ = l.hdr.RecordValue(min(max(d, 0), hdrMost).Microseconds()) // never out of range
}

// Merge adds all samples of another, exactly: the result is that of one that had
// recorded both. The other stays as it is.
func (l *Latencies) Merge(other *Latencies) error {
	from, longest := other.copied()
	if from == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ready()
	l.longest = max(l.longest, longest)
	if dropped := l.hdr.Merge(from); dropped != 0 {
		return fmt.Errorf("telemetry: merge latencies: got %d samples out of range, want none; they are lost", dropped)
	}
	return nil
}

// copied keeps the locks of two histograms from being held at once.
func (l *Latencies) copied() (*hdrhistogram.Histogram, time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hdr == nil {
		return nil, 0
	}
	return l.hdr.Clone(), l.longest
}

func (l *Latencies) ready() {
	if l.hdr == nil {
		l.hdr = hdrhistogram.New(1, hdrMost.Microseconds(), hdrDigits)
	}
}

// Quantiles are the durations that those shares (0 to 1) of the samples do not
// exceed, each at most 0.1 % or a microsecond too long; n is how many samples
// there are, and none of them below 0.
func (l *Latencies) Quantiles(shares ...float64) (out []time.Duration, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hdr == nil {
		return nil, 0
	}
	n = l.hdr.TotalCount()
	for _, q := range shares {
		// By nearest rank; the library itself rounds q*n to the nearest whole number.
		rank := min(max(math.Ceil(q*float64(n)), 1), float64(n))
		v := time.Duration(l.hdr.ValueAtQuantile(100*rank/float64(n))) * time.Microsecond
		out = append(out, min(v, max(l.longest, 0)))
	}
	return out, n
}

// Longest is the longest sample, exactly; 0 for none.
func (l *Latencies) Longest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.longest
}
