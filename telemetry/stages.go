package telemetry

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// Stage is one pipeline stage of an engine, on each of its devices. Bytes are by term:
// kv_bound, kv_held, kv_target, kv_lack.
type Stage struct {
	Engine string
	Stage  int
	Bytes  map[string]int64
}

// stages shows them when they are asked for.
type stages struct {
	read  func() []Stage
	bytes *prometheus.Desc
}

// ShowStages adds the series of pipeline stages; read is called once a scrape, by
// several goroutines where several scrape. Call it once.
func (m *Metrics) ShowStages(read func() []Stage) {
	m.registry.MustRegister(&stages{
		read:  read,
		bytes: prometheus.NewDesc("lull_stage_bytes", "KV of a pipeline stage on each of its devices, by term.", []string{"engine", "stage", "term"}, nil),
	})
}

// Describe implements prometheus.Collector.
func (s *stages) Describe(ch chan<- *prometheus.Desc) { ch <- s.bytes }

// Collect implements prometheus.Collector.
func (s *stages) Collect(ch chan<- prometheus.Metric) {
	for _, x := range s.read() {
		for term, b := range x.Bytes {
			ch <- prometheus.MustNewConstMetric(s.bytes, prometheus.GaugeValue, float64(b), clean(x.Engine, strconv.Itoa(x.Stage), term)...)
		}
	}
}

// StageShrink counts a finished shrink that was for a pipeline stage.
func (m *Metrics) StageShrink(engine string, stage int) {
	m.stageShrinks.WithLabelValues(clean(engine, strconv.Itoa(stage))...).Inc()
}
