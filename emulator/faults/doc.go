// Package faults spoils the answers of the emulated server on purpose, one fault
// a file, so that what stands in front of it can be tested against each.
//
// It knows no HTTP: an answer is a Sink that events are sent to, and a fault
// wraps it. A fault delays, withholds, cuts or splits what passes; it never
// changes the engine's books.
//
//	set, err := faults.Parse("latency=20ms,stall-after=3")
//	sink := set.Wrap(answer)
//	err = sink.Send(ctx, faults.Event{Tokens: 1, Bytes: event})
//
// A Set may be shared; what Wrap returns belongs to the goroutine of one answer.
//
// To add a fault: a file with a type that embeds Sink and overrides what it
// changes, a line in known, and a test. noop.go is the smallest example.
package faults
