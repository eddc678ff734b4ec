// Package trainer is the sidecar's end of the control channel to training
// processes: it listens on a socket, keeps one session per rank and device, and
// turns lines into calls of a Handler and values into lines.
//
// PROTOCOL.md alone describes the wire. The package decides nothing: it sends
// what it is given, says who is there and who has gone, and never raises or
// lowers a budget by itself. It reads no device and never logs.
//
//	srv, err := trainer.Listen(trainer.Config{Path: "/run/lull/lull.sock", Session: 7}, handler)
//	...
//	err = session.Send(trainer.Budget{Epoch: 7<<32 | 1, Bytes: 2 * size.GiB, Within: 12 * time.Millisecond})
//
// Concurrency: Session and Server methods may be called from any goroutine.
// Send never waits for the trainer: a line that the socket does not take at once
// is queued, and a newer budget replaces an older one that was not sent.
// Handler methods are called one at a time and in order for one session (Hello
// first, Gone last and exactly once), from a goroutine of that session; calls of
// different sessions may run at the same time. A Handler that blocks stops its
// session's reading, so it hands values on and returns.
package trainer
