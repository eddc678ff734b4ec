// Package traces holds small slices of real request traces and reads them.
//
// A trace is a list of rows: when a request arrived and how many tokens its
// prompt and its answer had. The package scales nothing, replays nothing and
// reads no file but those embedded in it; where the data comes from and under
// which licence is in ATTRIBUTION.md.
//
//	rows, err := traces.AzureConversation()
//	first := rows[0].At // 0: arrivals count from the first row
//
// All functions may be called from any goroutine; rows are fresh copies.
package traces
