package telemetry

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// Objective is one objective as it stands, in plain numbers.
type Objective struct {
	// SLO is the objective's name in the config, Kind what it is about (ttft, tbt,
	// tpot, e2e, success).
	SLO, Kind string
	// Target is the share that must be within.
	Target float64
	// Windows are those that have a sample.
	Windows []ObjectiveWindow
	// Quantiles are latencies in seconds by quantile, over all samples.
	Quantiles map[float64]float64
}

// ObjectiveWindow is one sliding window of an objective.
type ObjectiveWindow struct {
	Window                  string
	Attainment, BudgetLeft  float64
	Within, Beyond, Missing uint64
	// BurnRate is nil where there is none: a hard limit that was missed.
	BurnRate *float64
}

// Goodput is the rate of requests that kept all of their promise.
type Goodput struct {
	SLO, Window string
	PerSecond   float64
}

// objectives shows the objectives as they stand when they are asked for: windows
// slide with no sample as well.
type objectives struct {
	read                                                        func() ([]Objective, []Goodput)
	target, attainment, left, burn, samples, quantiles, goodput *prometheus.Desc
}

// ShowObjectives adds the objectives' series; read is called once a scrape, by
// several goroutines where several scrape. Call it once.
func (m *Metrics) ShowObjectives(read func() ([]Objective, []Goodput)) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"slo"}, labels...), nil)
	}
	m.registry.MustRegister(&objectives{
		read:       read,
		target:     desc("lull_slo_target_ratio", "Share of the samples that must be within; 1 is a hard limit.", "objective"),
		attainment: desc("lull_slo_attainment_ratio", "Share of the window's samples that were within, counted exactly; one that never came is a miss.", "objective", "window"),
		left:       desc("lull_slo_budget_left_ratio", "Part of the window's error budget that is left; below 0 when overspent.", "objective", "window"),
		burn:       desc("lull_slo_burn_rate", "Share of misses over the share that the target allows; none for a hard limit that was missed.", "objective", "window"),
		samples:    desc("lull_slo_window_samples", "Samples in the window by result (within, beyond, no_data).", "objective", "window", "result"),
		quantiles:  desc("lull_slo_latency_seconds", "Latency by quantile since the start, from an HDR histogram (within 0.1 %).", "objective", "quantile"),
		goodput:    desc("lull_goodput_requests_per_second", "Requests a second that kept all of their promise, over the part of the window since the start.", "window"),
	})
}

// Describe implements prometheus.Collector.
func (o *objectives) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{o.target, o.attainment, o.left, o.burn, o.samples, o.quantiles, o.goodput} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (o *objectives) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, clean(labels...)...)
	}
	all, goodput := o.read()
	for _, s := range all {
		gauge(o.target, s.Target, s.SLO, s.Kind)
		for _, w := range s.Windows {
			gauge(o.attainment, w.Attainment, s.SLO, s.Kind, w.Window)
			gauge(o.left, w.BudgetLeft, s.SLO, s.Kind, w.Window)
			if w.BurnRate != nil {
				gauge(o.burn, *w.BurnRate, s.SLO, s.Kind, w.Window)
			}
			gauge(o.samples, float64(w.Within), s.SLO, s.Kind, w.Window, "within")
			gauge(o.samples, float64(w.Beyond), s.SLO, s.Kind, w.Window, "beyond")
			gauge(o.samples, float64(w.Missing), s.SLO, s.Kind, w.Window, "no_data")
		}
		for q, v := range s.Quantiles {
			gauge(o.quantiles, v, s.SLO, s.Kind, quantileLabel(q))
		}
	}
	for _, g := range goodput {
		gauge(o.goodput, g.PerSecond, g.SLO, g.Window)
	}
}

func quantileLabel(q float64) string { return strconv.FormatFloat(q, 'g', -1, 64) }
