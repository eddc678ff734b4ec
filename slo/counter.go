package slo

import "time"

// Tally counts one objective: Within and Beyond are observations, Missing is
// requests that never gave one (an error, no first token).
type Tally struct {
	Within, Beyond, Missing uint64
}

// Attainment is Within over everything that should have been within, a missing
// one counted as a miss; ok is false before the first.
func (t Tally) Attainment() (share float64, ok bool) {
	n := t.Within + t.Beyond + t.Missing
	if n == 0 {
		return 0, false
	}
	return float64(t.Within) / float64(n), true
}

func (t *Tally) add(seen, promised time.Duration) {
	if promised > 0 && seen > promised {
		t.Beyond++
		return
	}
	t.Within++
}

// Counter counts TTFT per request, TBT per gap, and TBT per request as the mean
// of its gaps. Its zero value is empty and ready.
type Counter struct {
	ttft, gaps, means Tally
}

// TTFT takes one request's time to its first chunk with content.
func (c *Counter) TTFT(o Objective, d time.Duration) { c.ttft.add(d, o.TTFT) }

// Missing takes one request that ended without a first chunk with content.
func (c *Counter) Missing() {
	c.ttft.Missing++
	c.means.Missing++
}

// Gap takes one gap between two chunks with content.
func (c *Counter) Gap(o Objective, d time.Duration) { c.gaps.add(d, o.TBT) }

// Mean takes one finished request's (last - first) / (tokens - 1). A request of
// fewer than two tokens has no gap and is not counted.
func (c *Counter) Mean(o Objective, first, last time.Duration, tokens int) {
	if tokens < 2 {
		return
	}
	// Compared as a product: the division would round the mean down.
	if o.TBT > 0 && last-first > o.TBT*time.Duration(tokens-1) {
		c.means.Beyond++
		return
	}
	c.means.Within++
}

// Attainment is a copy of the tallies.
func (c *Counter) Attainment() Attainment {
	return Attainment{TTFT: c.ttft, Gaps: c.gaps, Means: c.means}
}

// Attainment is what a Counter has counted so far.
type Attainment struct {
	TTFT, Gaps, Means Tally
}
