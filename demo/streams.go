package demo

import (
	"slices"
	"time"
)

// fewGaps is how many gaps a number of streams needs before its mean is compared.
const fewGaps = 30

// streamGap is one gap between chunks and how many answers were being written
// when it ended.
type streamGap struct {
	streams int
	gap     time.Duration
}

// streamGaps lists every gap with the number of streams beside it, its own
// included. A real server computes one step for all its streams, so a gap is
// longer the more there are, whoever else uses the machine.
func streamGaps(results []Result) []streamGap {
	var starts, ends []time.Time
	for _, r := range results {
		if n := len(r.Tokens); n > 1 {
			starts, ends = append(starts, r.Tokens[0]), append(ends, r.Tokens[n-1])
		}
	}
	slices.SortFunc(starts, time.Time.Compare)
	slices.SortFunc(ends, time.Time.Compare)
	var list []streamGap
	for _, r := range results {
		for i := 1; i < len(r.Tokens); i++ {
			at := r.Tokens[i]
			began := countBefore(starts, at)
			over := countBefore(ends, at)
			list = append(list, streamGap{began - over, at.Sub(r.Tokens[i-1])})
		}
	}
	return list
}

// compareStreams fills each phase's streams, and how its gaps compare with those
// of inference only at the same number of them. phases and runs are in one order.
func compareStreams(phases []PhaseSummary, runs []*phaseRun) {
	var base []streamGap
	all := make([][]streamGap, len(runs))
	for i, run := range runs {
		all[i] = streamGaps(run.Results)
		if run.Phase.Name == InferenceOnly {
			base = all[i]
		}
	}
	for i := range phases {
		phases[i].StreamsMean = meanStreams(all[i])
		phases[i].SameStreamsSlowdown = slowdown(all[i], base)
	}
}

// countBefore is how many of the sorted times lie before t.
func countBefore(sorted []time.Time, t time.Time) int {
	n, _ := slices.BinarySearchFunc(sorted, t, time.Time.Compare)
	return n
}

// meanStreams is the mean of the stream counts over all gaps; 0 without any.
func meanStreams(gaps []streamGap) float64 {
	if len(gaps) == 0 {
		return 0
	}
	sum := 0
	for _, g := range gaps {
		sum += g.streams
	}
	return round4(float64(sum) / float64(len(gaps)))
}

// slowdown is by what factor gaps are longer than base's at the same number of
// streams: the means per number, weighted by the smaller of the two counts, over
// the numbers that both had at least fewGaps of. It is 0 where there are none.
func slowdown(gaps, base []streamGap) float64 {
	own, other := byStreams(gaps), byStreams(base)
	var ratio, weight float64
	for n, list := range own {
		w := float64(min(len(list), len(other[n])))
		if w < fewGaps {
			continue
		}
		ratio += w * float64(mean(list)) / float64(mean(other[n]))
		weight += w
	}
	if weight == 0 {
		return 0
	}
	return round4(ratio / weight)
}

func byStreams(gaps []streamGap) map[int][]time.Duration {
	m := map[int][]time.Duration{}
	for _, g := range gaps {
		m[g.streams] = append(m[g.streams], g.gap)
	}
	return m
}
