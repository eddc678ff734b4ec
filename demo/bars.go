package demo

import (
	"fmt"
	"strings"
)

// Bar is one thing that the demo has promised to show.
type Bar struct {
	Name string `json:"name"`
	Want string `json:"want"`
	Got  string `json:"got"`
	Met  bool   `json:"met"`
	// Short says by how much it was missed, empty when it was met.
	Short string `json:"short,omitempty"`
	// Skipped says which phase was not run or failed, so that nothing can be said.
	Skipped string `json:"skipped,omitempty"`
}

// atLeast is a bar on a figure that must not be below want.
func atLeast(name string, got, want float64, show func(float64) string) Bar {
	b := Bar{Name: name, Want: "≥ " + show(want), Got: show(got), Met: got >= want}
	if !b.Met {
		b.Short = strings.Replace(show(want-got), " %", " points", 1)
	}
	return b
}

func percent(v float64) string { return fmt.Sprintf("%.1f %%", v*100) }
func mib(v float64) string     { return fmt.Sprintf("%.0f MiB", v/(1<<20)) }
func count(v float64) string   { return fmt.Sprintf("%.0f", v) }

// bars compares the phase lull with the others.
func bars(s Summary) []Bar {
	if s.Study == StudyIsolation {
		return nil // figures side by side; nothing is promised
	}
	lull, ok := s.phase(Lull)
	if !ok {
		return []Bar{{Name: "phase lull", Skipped: Lull}}
	}
	if s.Engine == EngineVLLM {
		return vllmBars(s)
	}
	var list []Bar
	against := func(name, other string, bar func(o PhaseSummary) Bar) {
		o, ok := s.phase(other)
		if !ok {
			list = append(list, Bar{Name: name, Skipped: other})
			return
		}
		b := bar(o)
		b.Name = name
		list = append(list, b)
	}
	against("TTFT attainment: inference only − 3 points", InferenceOnly, func(o PhaseSummary) Bar {
		return atLeast("", lull.TTFTAttainment, o.TTFTAttainment-0.03, percent)
	})
	against("TTFT attainment: static 50 % + 20 points", Static50, func(o PhaseSummary) Bar {
		return atLeast("", lull.TTFTAttainment, o.TTFTAttainment+0.20, percent)
	})
	against("TTFT attainment: naive + 15 points", Naive, func(o PhaseSummary) Bar {
		return atLeast("", lull.TTFTAttainment, o.TTFTAttainment+0.15, percent)
	})
	against("TBT attainment: inference only − 1 point", InferenceOnly, func(o PhaseSummary) Bar {
		return atLeast("", lull.TBTAttainment, o.TBTAttainment-0.01, percent)
	})
	against("mean training bytes: 0.9 × static 50 %", Static50, func(o PhaseSummary) Bar {
		return atLeast("", lull.TrainBytesMean, 0.9*o.TrainBytesMean, mib)
	})
	against("mean training bytes: 1.6 × static 75 %", Static75, func(o PhaseSummary) Bar {
		return atLeast("", lull.TrainBytesMean, 1.6*o.TrainBytesMean, mib)
	})
	against("training samples: 0.85 × static 50 %", Static50, func(o PhaseSummary) Bar {
		return atLeast("", lull.TrainSamples, 0.85*o.TrainSamples, count)
	})
	list = append(list, atLeast("shrinks that freed memory", float64(s.Handover.ShrinksFreed), 30, count))
	list = append(list, none("audit violations", s.Audit.Violations))
	loss := Bar{
		Name: "loss falls", Want: fmt.Sprintf("< %.3f", lull.LossFirst), Got: fmt.Sprintf("%.3f", lull.LossLast),
		Met: lull.LossLast < lull.LossFirst && lull.LossLast > 0,
	}
	if !loss.Met {
		loss.Short = fmt.Sprintf("%.3f", lull.LossLast-lull.LossFirst)
	}
	return append(list, loss)
}

func none(name string, got int) Bar {
	b := Bar{Name: name, Want: "0", Got: fmt.Sprint(got), Met: got == 0}
	if !b.Met {
		b.Short = fmt.Sprint(got)
	}
	return b
}
