// Package corebench measures what Lull costs when it does its least: the time
// of one step of the core with many live requests, and the share of a core that
// the sidecar takes in front of an idle server.
//
// Steps are timed one by one, so the clock's own cost (some 0.05 us) is in every
// figure. The sidecar is `lull serve` as a user starts it, before `lull emulate`;
// its CPU time is what the kernel says of the process. Nothing is trimmed, and
// the result says the machine, the command and n.
//
// It never decides what is good enough beyond the bars that it prints: a missed
// bar is a result and not an error.
//
// Example:
//
//	cfg := corebench.DefaultConfig()
//	cfg.Exe = "bin/lull"
//	err := corebench.Run(ctx, os.Stdout, cfg)
//
// Concurrency: Run starts two processes and the goroutines that read their
// output, and ends them before it returns; one Run at a time, since two would
// measure each other.
package corebench
