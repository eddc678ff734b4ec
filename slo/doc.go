// Package slo holds the objectives of a request and counts, exactly, how often
// they were met. It reads no clock and keeps no samples: every figure is a
// count, so nothing is trimmed, interpolated or drifts, and its memory depends on
// the number of objectives only (about 22 KB for each kind that has a sample).
//
// An Objective says what the requests of a model and tier are promised, always or
// at some Hours of the week, a Promise what one request is (the client may have
// asked for something else). A Counter counts one objective over its lifetime and
// over sliding windows of 1 m, 5 m, 1 h and 30 d; Tally and Target turn counts into
// attainment, error budget and burn rate. FitTTFT makes an objective from measurements.
//
//	o := slo.Objective{Name: "default", TTFT: slo.Constant(680 * time.Millisecond), TTFTTarget: 990_000}
//	c := slo.NewCounter(o)
//	c.Request(now, o.Promise(), slo.Ended{OK: true, Content: true, TTFT: 90 * time.Millisecond})
//	share, ok := c.Reports(now)[0].Windows[0].Attainment() // 1, true
//
// Concurrency: a Counter belongs to one goroutine at a time, its reads too (they
// move the windows); the other types are plain values.
package slo
