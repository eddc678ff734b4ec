package telemetry

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics are the sidecar's Prometheus series. A series exists once it has a
// sample.
type Metrics struct {
	registry *prometheus.Registry
	models   *bounded

	requests     *prometheus.CounterVec
	ttft         *prometheus.HistogramVec
	tbt          prometheus.Histogram
	held         prometheus.Histogram
	overhead     prometheus.Histogram
	tokens       *prometheus.CounterVec
	judged       *prometheus.CounterVec
	overrides    *prometheus.CounterVec
	inFlight     prometheus.Gauge
	memory       *prometheus.GaugeVec
	handovers    *prometheus.CounterVec
	handoverTime *prometheus.HistogramVec
	freed        prometheus.Counter
	samples      *prometheus.GaugeVec
	duty         prometheus.Gauge
	dutyPrices   *prometheus.GaugeVec
	yields       *prometheus.CounterVec
	loop         prometheus.Counter
	dropped      prometheus.Counter
	trainers     prometheus.Gauge
	failovers    *prometheus.CounterVec
	reloads      *prometheus.CounterVec
	faults       *prometheus.CounterVec
	stageShrinks *prometheus.CounterVec
}

// latencyBuckets run from half a millisecond to a minute, doubling: attainment
// is counted exactly beside them (lull_slo_total) and never read off buckets.
var latencyBuckets = prometheus.ExponentialBuckets(0.0005, 2, 18)

// handoverBuckets run from 0.1 ms to 3 s, doubling.
var handoverBuckets = prometheus.ExponentialBuckets(0.0001, 2, 16)

// overheadBuckets run from 10 us to 5 s, doubling: each event of a long stream adds to
// it.
var overheadBuckets = prometheus.ExponentialBuckets(0.00001, 2, 20)

// NewMetrics makes a registry of its own: several may live in one process.
func NewMetrics() *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		models:   newBounded(64),
		requests: counter("lull_requests_total", "Interpreted requests by how they ended.", "model", "outcome"),
		ttft: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "lull_ttft_seconds",
			Help: "Request fully read to first content chunk written to the client, held time included.", Buckets: latencyBuckets}, []string{"model"}),
		tbt: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "lull_tbt_seconds",
			Help: "Every gap between two content chunks of one request.", Buckets: latencyBuckets}),
		held: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "lull_request_held_seconds",
			Help: "Time that requests were held for memory; only requests that were held.", Buckets: handoverBuckets}),
		overhead: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "lull_request_overhead_seconds",
			Help: "Lull's own time in a request: all but held, waiting for the LLM server or for a client that does not read.", Buckets: overheadBuckets}),
		tokens:    counter("lull_tokens_total", "Tokens by direction and by what counted them (usage or events).", "direction", "source"),
		judged:    counter("lull_slo_total", "Samples within or beyond their objective, or that never came (no_data).", "slo", "objective", "result"),
		overrides: counter("lull_slo_overrides_total", "Objectives that clients asked for, by header and by what became of them (used, clamped, ignored).", "header", "result"),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Name: "lull_requests_in_flight",
			Help: "Interpreted requests that have not ended."}),
		memory: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "lull_memory_bytes",
			Help: "The ledger: bytes by device, owner and term."}, []string{"device", "owner", "term"}),
		handovers: counter("lull_handovers_total", "Finished handovers.", "direction", "result", "how"),
		handoverTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "lull_handover_duration_seconds",
			Help: "Decision to the device's confirmation (shrink) or to the ack (grow).", Buckets: handoverBuckets}, []string{"direction"}),
		freed: prometheus.NewCounter(prometheus.CounterOpts{Name: "lull_freed_bytes_total",
			Help: "Bytes that the device showed free after shrinks."}),
		samples: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "lull_training_samples",
			Help: "Training samples done, as the trainer reports them."}, []string{"job", "rank"}),
		duty: prometheus.NewGauge(prometheus.GaugeOpts{Name: "lull_training_duty",
			Help: "Share of the device's time that training may use beside the requests that run, 0 while it yields."}),
		dutyPrices: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "lull_shadow_price_per_duty_point_second",
			Help: "What one more hundredth of the device's time for training would be worth to training, or cost requests, a second, in the currency of policy.prices."}, []string{"party"}),
		yields: counter("lull_training_yields_total", "Times training was told to stop at its next block for a request's slack."),
		loop: prometheus.NewCounter(prometheus.CounterOpts{Name: "lull_core_failures_total",
			Help: "Times the core broke an invariant; training is held at its least and requests pass unguarded."}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{Name: "lull_events_dropped_total",
			Help: "Lines of the events file that found the queue full."}),
		trainers: prometheus.NewGauge(prometheus.GaugeOpts{Name: "lull_trainers_connected",
			Help: "Trainers that have a session with the sidecar."}),
		failovers:    counter("lull_failover_requests_total", "Interpreted requests that went to another LLM server than the first, by that server.", "engine"),
		reloads:      counter("lull_config_reloads_total", "Configs read while requests run: taken over (ok) or refused.", "result"),
		faults:       counter("lull_device_faults_total", "Errors that a GPU's driver reported, by kind (xid, ecc_corrected, ecc_uncorrected, retired, lost) and by the XID's code.", "device", "kind", "code"),
		stageShrinks: counter("lull_stage_shrinks_total", "Finished shrinks that were for a pipeline stage.", "engine", "stage"),
	}
	m.duty.Set(1) // nobody has been told anything else
	m.registry.MustRegister(m.requests, m.ttft, m.tbt, m.held, m.overhead, m.tokens, m.judged, m.overrides, m.inFlight, m.memory,
		m.handovers, m.handoverTime, m.freed, m.samples, m.duty, m.dutyPrices, m.yields, m.loop, m.dropped, m.trainers, m.failovers, m.reloads, m.faults, m.stageShrinks,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler serves the metrics in Prometheus and OpenMetrics text.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

// Request is one ended request, in plain numbers. TTFT is 0 when no content
// came.
type Request struct {
	Model, Outcome             string
	TTFT, Held, Overhead       time.Duration
	PromptTokens, OutputTokens int
	TokenSource                string
}

// RequestStarted counts a request in flight.
func (m *Metrics) RequestStarted() { m.inFlight.Inc() }

// RequestDone counts a request that ended, once, for every ending.
func (m *Metrics) RequestDone(r Request) {
	m.inFlight.Dec()
	model := m.models.label(r.Model)
	m.requests.WithLabelValues(clean(model, r.Outcome)...).Inc()
	if r.TTFT > 0 {
		m.ttft.WithLabelValues(clean(model)...).Observe(r.TTFT.Seconds())
	}
	if r.Held > 0 {
		m.held.Observe(r.Held.Seconds())
	}
	m.overhead.Observe(r.Overhead.Seconds())
	if r.PromptTokens > 0 {
		m.tokens.WithLabelValues(clean("prompt", r.TokenSource)...).Add(float64(r.PromptTokens))
	}
	if r.OutputTokens > 0 {
		m.tokens.WithLabelValues(clean("output", r.TokenSource)...).Add(float64(r.OutputTokens))
	}
}

// Gap counts one gap between two content chunks.
func (m *Metrics) Gap(d time.Duration) { m.tbt.Observe(d.Seconds()) }

// Judged counts one sample of an objective: its name in the config, what it is
// about (ttft, tbt, tpot, e2e, success), and within, beyond or no_data.
func (m *Metrics) Judged(slo, objective, result string) {
	m.judged.WithLabelValues(clean(slo, objective, result)...).Inc()
}

// TrainingAdvice is what trainers were told last; began says that a yield began
// with it.
func (m *Metrics) TrainingAdvice(yielding bool, duty float64, began bool) {
	if yielding {
		duty = 0
	}
	m.duty.Set(duty)
	if began {
		m.yields.WithLabelValues().Inc()
	}
}

// DutyPrices sets what one more hundredth of the device's time is worth to training,
// and costs requests.
func (m *Metrics) DutyPrices(toTraining, toRequests float64) {
	m.dutyPrices.WithLabelValues("training").Set(toTraining)
	m.dutyPrices.WithLabelValues("requests").Set(toRequests)
}

// Override counts an objective that a client asked for by a header: used, clamped
// to its bounds, or ignored.
func (m *Metrics) Override(header, result string) {
	m.overrides.WithLabelValues(clean(header, result)...).Inc()
}

// Handover counts a finished handover; took is 0 when it was never confirmed.
func (m *Metrics) Handover(shrink bool, result, how string, took time.Duration, freed int64) {
	direction := "grow"
	if shrink {
		direction = "shrink"
	}
	m.handovers.WithLabelValues(clean(direction, result, how)...).Inc()
	if took > 0 {
		m.handoverTime.WithLabelValues(direction).Observe(took.Seconds())
	}
	if freed > 0 {
		m.freed.Add(float64(freed))
	}
}

// Memory sets one term of the ledger.
func (m *Metrics) Memory(device, owner, term string, bytes int64) {
	m.memory.WithLabelValues(clean(device, owner, term)...).Set(float64(bytes))
}

// ForgetMemory takes a term back that is not known any more: an old figure would pass
// for today's.
func (m *Metrics) ForgetMemory(device, owner, term string) {
	m.memory.DeleteLabelValues(clean(device, owner, term)...)
}

// DeviceFault counts an error that a device's driver reported.
func (m *Metrics) DeviceFault(device, kind, code string) {
	m.faults.WithLabelValues(clean(device, kind, code)...).Inc()
}

// TrainingSamples sets the samples that a trainer has reported.
func (m *Metrics) TrainingSamples(job, rank string, samples float64) {
	m.samples.WithLabelValues(clean(job, rank)...).Set(samples)
}

// ForgetTrainer ends the series of a trainer that has left the device.
func (m *Metrics) ForgetTrainer(device, owner, job, rank string) {
	at := clean(device, owner)
	m.memory.DeletePartialMatch(prometheus.Labels{"device": at[0], "owner": at[1]})
	m.ForgetTraining(job, rank)
}

// ForgetTraining ends the series of what a trainer reports.
func (m *Metrics) ForgetTraining(job, rank string) { m.samples.DeleteLabelValues(clean(job, rank)...) }

// CoreFailed counts a broken invariant of the core.
func (m *Metrics) CoreFailed() { m.loop.Inc() }
