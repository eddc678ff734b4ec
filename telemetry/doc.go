// Package telemetry is what Lull says of itself: Prometheus metrics and the
// events file.
//
// It is an edge that takes plain numbers; it imports neither the core nor
// another edge, never sees a prompt, an answer or a key, and never delays its
// caller: metrics are atomic, and an events line that finds the queue full is
// counted and dropped. Every method is safe for concurrent use.
//
//	m := telemetry.NewMetrics()
//	m.Gap(20 * time.Millisecond)
//	http.Handle("/metrics", m.Handler())
package telemetry
