package emulator

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lull-project/lull/emulator/model"
)

// times are vLLM's latency histograms, in the engine's own time: what a client
// sees comes later by the host's lateness.
type times struct {
	ttft, gap, whole prometheus.Histogram
	// late is ours: by how much the host was late to end steps.
	late prometheus.Histogram
}

func newTimes(labels prometheus.Labels) *times {
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: labels, Buckets: buckets})
	}
	return &times{
		ttft: histogram("vllm:time_to_first_token_seconds", "Time from arrival to the first token.",
			[]float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}),
		gap: histogram("vllm:inter_token_latency_seconds", "Time between two tokens of one request.",
			[]float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}),
		whole: histogram("vllm:e2e_request_latency_seconds", "Time from arrival to the last token.",
			[]float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}),
		late: histogram("lull_emulator_step_lateness_seconds", "How long after its meant time a step was ended.",
			[]float64{.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1}),
	}
}

// token notes a token of the stream.
func (t *times) token(s *stream, ev model.Event) {
	if ev.N == 1 {
		t.ttft.Observe((ev.At - s.arrived).Seconds())
	} else {
		t.gap.Observe((ev.At - s.last).Seconds())
	}
	s.last = ev.At
	if ev.Reason != model.Unfinished {
		t.whole.Observe((ev.At - s.arrived).Seconds())
	}
}

func (t *times) collectors() []prometheus.Collector {
	return []prometheus.Collector{t.ttft, t.gap, t.whole, t.late}
}
