package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Serving is what the data path knows at this moment.
type Serving struct {
	// Ready is what /readyz says.
	Ready bool
	// Up says of each upstream whether it answers.
	Up map[string]bool
}

// serving shows it when it is asked.
type serving struct {
	now       func() Serving
	ready, up *prometheus.Desc
}

// ShowServing makes the handler show what now returns. Call it once.
func (m *Metrics) ShowServing(now func() Serving) {
	m.registry.MustRegister(&serving{
		now:   now,
		ready: prometheus.NewDesc("lull_ready", "1 while a request that comes now can be served, as /readyz says.", nil, nil),
		up:    prometheus.NewDesc("lull_engine_up", "1 while the LLM server answers requests or Lull's own question, 0 from the start until it does and while it is down.", []string{"engine"}, nil),
	})
}

// Describe makes serving a prometheus.Collector.
func (s *serving) Describe(out chan<- *prometheus.Desc) { out <- s.ready; out <- s.up }

// Collect likewise.
func (s *serving) Collect(out chan<- prometheus.Metric) {
	now := s.now()
	out <- prometheus.MustNewConstMetric(s.ready, prometheus.GaugeValue, oneIf(now.Ready))
	for name, up := range now.Up {
		out <- prometheus.MustNewConstMetric(s.up, prometheus.GaugeValue, oneIf(up), clean(name)...)
	}
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// TrainersConnected sets how many trainers have a session.
func (m *Metrics) TrainersConnected(n int) { m.trainers.Set(float64(n)) }

// Failover counts a request that went to another upstream than the first.
func (m *Metrics) Failover(engine string) { m.failovers.WithLabelValues(clean(engine)...).Inc() }

// ConfigReload counts a config that was read while requests run: taken over, or
// refused.
func (m *Metrics) ConfigReload(ok bool) {
	result := "refused"
	if ok {
		result = "ok"
	}
	m.reloads.WithLabelValues(result).Inc()
}
