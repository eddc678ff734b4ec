package demo

import (
	"testing"
	"time"
)

// answerAt is a result whose chunks arrive at the given milliseconds.
func answerAt(at ...int) Result {
	var r Result
	for _, t := range at {
		r.Tokens = append(r.Tokens, time.UnixMilli(int64(t)))
	}
	return r
}

func TestGapCountsTheStreamsThatRanBesideIt(t *testing.T) {
	gaps := streamGaps([]Result{answerAt(0, 10, 30), answerAt(5, 25), answerAt(100), {}})
	want := []streamGap{{2, 10 * time.Millisecond}, {1, 20 * time.Millisecond}, {2, 20 * time.Millisecond}}
	if len(gaps) != len(want) {
		t.Fatalf("got %v, want %v", gaps, want)
	}
	for i := range want {
		if gaps[i] != want[i] {
			t.Errorf("gap %d: got %v, want %v", i, gaps[i], want[i])
		}
	}
	if got := meanStreams(gaps); got != 1.6667 {
		t.Errorf("mean streams: got %v, want 1.6667", got)
	}
	if got := meanStreams(nil); got != 0 {
		t.Errorf("mean streams of none: got %v, want 0", got)
	}
}

func TestSlowdownComparesGapsAtTheSameNumberOfStreams(t *testing.T) {
	fill := func(streams, n int, gap time.Duration) []streamGap {
		list := make([]streamGap, n)
		for i := range list {
			list[i] = streamGap{streams, gap}
		}
		return list
	}
	base := append(fill(1, 100, 10*time.Millisecond), fill(4, 50, 40*time.Millisecond)...)
	// Twice as many streams most of the time, each step a tenth slower.
	own := append(fill(1, 50, 11*time.Millisecond), fill(4, 200, 44*time.Millisecond)...)
	own = append(own, fill(9, 500, time.Second)...)         // base never had as many
	own = append(own, fill(2, fewGaps-1, 3*time.Second)...) // too few
	base = append(base, fill(2, fewGaps-1, time.Millisecond)...)
	if got := slowdown(own, base); got != 1.1 {
		t.Errorf("got %v, want 1.1", got)
	}
	if got := slowdown(base, base); got != 1 {
		t.Errorf("against itself: got %v, want 1", got)
	}
	if got := slowdown(nil, base); got != 0 {
		t.Errorf("of none: got %v, want 0", got)
	}
}

func TestPhasesAreComparedWithInferenceOnly(t *testing.T) {
	run := func(name string, gap int) *phaseRun {
		r := &phaseRun{Phase: Phase{Name: name}}
		var at []int
		for i := range fewGaps + 1 {
			at = append(at, i*gap)
		}
		r.Results = []Result{answerAt(at...)}
		return r
	}
	runs := []*phaseRun{run(Static50, 30), run(InferenceOnly, 20)}
	phases := make([]PhaseSummary, len(runs))
	compareStreams(phases, runs)
	if p := phases[0]; p.StreamsMean != 1 || p.SameStreamsSlowdown != 1.5 {
		t.Errorf("static-50: got %v streams, %v, want 1 and 1.5", p.StreamsMean, p.SameStreamsSlowdown)
	}
	compareStreams(phases[:1], runs[:1])
	if p := phases[0]; p.SameStreamsSlowdown != 0 {
		t.Errorf("without inference only: got %v, want 0", p.SameStreamsSlowdown)
	}
}
