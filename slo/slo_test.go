package slo

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

const ms = time.Millisecond

func TestSlackIsThePromiseLessTimeGoneAndPrefill(t *testing.T) {
	o := Objective{TTFT: 135 * ms}
	for _, c := range []struct{ now, arrived, prefill, want time.Duration }{
		{100 * ms, 100 * ms, 35 * ms, 100 * ms},
		{150 * ms, 100 * ms, 35 * ms, 50 * ms},
		{300 * ms, 100 * ms, 35 * ms, -100 * ms},
	} {
		if got := o.Slack(c.now, c.arrived, c.prefill); got != c.want {
			t.Errorf("Slack(%v, %v, %v) = %v, want %v", c.now, c.arrived, c.prefill, got, c.want)
		}
	}
	if got := (Objective{}).Slack(5*ms, 1*ms, 1*ms); got != 0 {
		t.Errorf("Slack without a promise = %v, want 0", got)
	}
}

func TestAttainmentIsUnknownBeforeTheFirstObservation(t *testing.T) {
	var c Counter
	if share, ok := c.Attainment().TTFT.Attainment(); ok || share != 0 {
		t.Fatalf("got %v, %v, want 0, false", share, ok)
	}
}

func TestMissingFirstTokenIsAMiss(t *testing.T) {
	var c Counter
	o := Objective{TTFT: 10 * ms}
	c.TTFT(o, 10*ms)
	c.Missing()
	if share, _ := c.Attainment().TTFT.Attainment(); share != 0.5 {
		t.Fatalf("attainment %v, want 0.5", share)
	}
}

func TestMeanIsNotRoundedBelowThePromise(t *testing.T) {
	var c Counter
	o := Objective{TBT: 10}
	c.Mean(o, 0, 31, 4) // 10.33 ns a gap
	c.Mean(o, 0, 30, 4)
	c.Mean(o, 0, 999, 1) // no gap at all
	if got := c.Attainment().Means; got != (Tally{Within: 1, Beyond: 1}) {
		t.Fatalf("means %+v, want one within and one beyond", got)
	}
}

func TestCountsEqualAPlainLoopOverAllObservations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Objective{TTFT: time.Duration(rapid.IntRange(0, 50).Draw(t, "ttft")), TBT: time.Duration(rapid.IntRange(0, 50).Draw(t, "tbt"))}
		seen := rapid.SliceOf(rapid.IntRange(0, 100)).Draw(t, "seen")
		var c Counter
		var ttft, gaps Tally
		for _, v := range seen {
			d := time.Duration(v)
			c.TTFT(o, d)
			c.Gap(o, d)
			if o.TTFT == 0 || d <= o.TTFT {
				ttft.Within++
			} else {
				ttft.Beyond++
			}
			if o.TBT == 0 || d <= o.TBT {
				gaps.Within++
			} else {
				gaps.Beyond++
			}
		}
		if got := c.Attainment(); got.TTFT != ttft || got.Gaps != gaps {
			t.Fatalf("got %+v, want %+v %+v", got, ttft, gaps)
		}
	})
}
