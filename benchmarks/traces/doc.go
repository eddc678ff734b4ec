// Package traces holds small slices of real request traces and reads traces in
// the formats that they are published in.
//
// A trace is a list of rows: when a request arrived and how many tokens its
// prompt and its answer had. Where the embedded data comes from and under which
// licence is in ATTRIBUTION.md; larger traces are files that a user names. The
// package replays nothing. Where a format needs drawing (timestamps on a coarse
// grid, rates instead of requests), the draw follows from a seed.
//
//	rows, err := traces.AzureConversation()
//	trace, err := traces.Open("conversation_trace.jsonl", traces.Options{Seed: 1})
//	first := trace.Rows[0].At // 0: arrivals count from the first row
//
// All functions may be called from any goroutine; rows are fresh copies.
package traces
