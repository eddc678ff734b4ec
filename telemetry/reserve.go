package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Reserve is an engine's priced reserve as it stands, in plain numbers: costs in
// the currency of the prices, rates of a second.
type Reserve struct {
	Engine              string
	Bytes               float64
	Premium, Loss, Bare float64 // Bare is the loss without a reserve
	// ToTraining and ToRequests are what one GiB more is worth to either.
	ToTraining, ToRequests float64
	// ToPrefixes is what one GiB more of cached prefixes saves, Kept what is kept of them.
	ToPrefixes, Kept float64
	// Lot is what a shrink takes beyond what is needed, Patience the seconds that an
	// excess waits; CourseCost and RentalCost what the followed way to lend and plain
	// ski rental would have cost of late.
	Lot, Patience, CourseCost, RentalCost float64
	// Since the start.
	Displaced, Spent, Saved  float64
	Misses, ShadowMisses     float64
	Arrivals, Short, Covered uint64
	// With and Without compare times with the reserve and intervals without it.
	With, Without ReserveTrial
}

// ReserveTrial is the requests that came, and those of them that found no room.
type ReserveTrial struct{ Arrivals, Short uint64 }

// reserves shows them when they are asked for.
type reserves struct {
	read                                                                  func() []Reserve
	bytes, cost, shadow, displaced, spent, saved, misses, arrivals, tried *prometheus.Desc
	lot, patience, course, kept                                           *prometheus.Desc
}

// ShowReserves adds the series of priced reserves; read is called once a scrape,
// by several goroutines where several scrape. Call it once.
func (m *Metrics) ShowReserves(read func() []Reserve) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"engine"}, labels...), nil)
	}
	m.registry.MustRegister(&reserves{
		read:      read,
		bytes:     desc("lull_reserve_bytes", "Bytes that the priced reserve keeps from training on each of the engine's devices."),
		cost:      desc("lull_reserve_cost_per_second", "What the reserve costs training (premium), what misses cost in spite of it (loss) and would without it (loss_without), in the currency of policy.prices.", "side"),
		shadow:    desc("lull_shadow_price_per_gib_second", "What one GiB more would be worth to requests, to training or in cached prefixes, a second, in the currency of policy.prices.", "party"),
		displaced: desc("lull_reserve_displaced_samples_total", "Training samples that the reserve has cost."),
		spent:     desc("lull_reserve_spent_total", "Price of the samples displaced, each at that of its time."),
		saved:     desc("lull_reserve_saved_total", "Price of the expected misses that the reserve has avoided, each at that of its tier and time."),
		misses:    desc("lull_reserve_expected_misses_total", "Misses expected of requests that found no room: as it was (priced) and in the shadow ledger without a reserve (none).", "reserve"),
		arrivals:  desc("lull_reserve_arrivals_total", "Requests by the room they found: free (without the reserve too), covered (only with it), short.", "room"),
		kept:      desc("lull_reserve_prefixes_bytes", "Cached prefixes that are kept from training because they save more."),
		lot:       desc("lull_reserve_lot_bytes", "Bytes that a shrink takes beyond what is needed."),
		patience:  desc("lull_reserve_patience_seconds", "How long bytes that the engine does not need are kept from training."),
		course:    desc("lull_reserve_course_cost_per_second", "What the way to lend that is followed would have cost of late, and what plain ski rental would have, in the currency of policy.prices.", "course"),
		tried:     desc("lull_reserve_trial_arrivals_total", "Requests that came with the reserve or while it was off at random, by the room they found.", "reserve", "room"),
	})
}

// Describe implements prometheus.Collector.
func (r *reserves) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{r.bytes, r.cost, r.shadow, r.displaced, r.spent, r.saved, r.misses, r.arrivals, r.tried, r.lot, r.patience, r.course, r.kept} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (r *reserves) Collect(ch chan<- prometheus.Metric) {
	show := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, clean(labels...)...)
	}
	for _, s := range r.read() {
		gauge := func(d *prometheus.Desc, v float64, labels ...string) {
			show(d, prometheus.GaugeValue, v, append([]string{s.Engine}, labels...)...)
		}
		count := func(d *prometheus.Desc, v float64, labels ...string) {
			show(d, prometheus.CounterValue, v, append([]string{s.Engine}, labels...)...)
		}
		gauge(r.bytes, s.Bytes)
		gauge(r.cost, s.Premium, "premium")
		gauge(r.cost, s.Loss, "loss")
		gauge(r.cost, s.Bare, "loss_without")
		gauge(r.shadow, s.ToTraining, "training")
		gauge(r.shadow, s.ToRequests, "requests")
		gauge(r.shadow, s.ToPrefixes, "prefixes")
		gauge(r.kept, s.Kept)
		gauge(r.lot, s.Lot)
		gauge(r.patience, s.Patience)
		gauge(r.course, s.CourseCost, "followed")
		gauge(r.course, s.RentalCost, "rental")
		count(r.displaced, s.Displaced)
		count(r.spent, s.Spent)
		count(r.saved, s.Saved)
		count(r.misses, s.Misses, "priced")
		count(r.misses, s.ShadowMisses, "none")
		count(r.arrivals, float64(s.Arrivals-s.Covered-s.Short), "free")
		count(r.arrivals, float64(s.Covered), "covered")
		count(r.arrivals, float64(s.Short), "short")
		for word, t := range map[string]ReserveTrial{"priced": s.With, "off": s.Without} {
			count(r.tried, float64(t.Arrivals-t.Short), word, "free")
			count(r.tried, float64(t.Short), word, "short")
		}
	}
}
