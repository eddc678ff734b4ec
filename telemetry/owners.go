package telemetry

import "github.com/prometheus/client_golang/prometheus"

// OwnerMemory is what one owner has on a device, by category, and what of it could be
// taken back, by the time that it takes.
type OwnerMemory struct {
	Device, Owner      string
	Bytes, Reclaimable map[string]int64
}

// owners shows them when they are asked for.
type owners struct {
	read               func() []OwnerMemory
	bytes, reclaimable *prometheus.Desc
}

// ShowOwners adds the series of memory by category; read is called once a scrape, by
// several goroutines where several scrape. Call it once.
func (m *Metrics) ShowOwners(read func() []OwnerMemory) {
	m.registry.MustRegister(&owners{
		read:        read,
		bytes:       prometheus.NewDesc("lull_owner_memory_bytes", "What an engine or a trainer has on a device, by category.", []string{"device", "owner", "category"}, nil),
		reclaimable: prometheus.NewDesc("lull_owner_reclaimable_bytes", "What of it could be taken back within a time, as far as that was measured.", []string{"device", "owner", "within"}, nil),
	})
}

// Describe implements prometheus.Collector.
func (o *owners) Describe(ch chan<- *prometheus.Desc) { ch <- o.bytes; ch <- o.reclaimable }

// Collect implements prometheus.Collector.
func (o *owners) Collect(ch chan<- prometheus.Metric) {
	for _, r := range o.read() {
		for category, b := range r.Bytes {
			ch <- prometheus.MustNewConstMetric(o.bytes, prometheus.GaugeValue, float64(b), clean(r.Device, r.Owner, category)...)
		}
		for within, b := range r.Reclaimable {
			ch <- prometheus.MustNewConstMetric(o.reclaimable, prometheus.GaugeValue, float64(b), clean(r.Device, r.Owner, within)...)
		}
	}
}
