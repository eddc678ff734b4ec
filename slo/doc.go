// Package slo holds the objectives of a request and counts, exactly, how often
// they were met. It reads no clock and keeps no samples: every figure is a
// count, so nothing is trimmed and nothing drifts.
//
//	var c slo.Counter
//	o := slo.Objective{TTFT: 135 * time.Millisecond, TBT: 76 * time.Millisecond}
//	c.TTFT(o, 90*time.Millisecond)
//	share, ok := c.Attainment().TTFT.Attainment() // 1, true
//
// Concurrency: a Counter belongs to one goroutine at a time; Objective and
// Attainment are plain values.
package slo
