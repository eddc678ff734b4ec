// Package sidecar is the wiring: it turns what the edges see into events of the
// core, and what the core decides into calls of the edges.
//
// One goroutine, the loop, owns the core and everything that the core's actions
// touch; all others hand it inputs over one channel and never wait for it longer
// than a bounded time. It decides nothing itself: no budget, no bound, no hold
// is chosen here. When the core breaks an invariant, the loop stops asking it:
// requests pass unguarded and training is told to its least.
//
//	s, err := sidecar.New(file, slog.Default())
//	err = s.Run(ctx, os.Stdout) // until ctx ends, then drains
//
// Files: loop.go (the goroutine), act.go (actions to calls), gate.go (requests),
// engines.go (observe and bound), trainers.go (sessions and their bytes),
// assemble.go (the core's config from what the engines say), view.go (what the
// admin API shows), servers.go and front.go (the listeners and what they serve),
// drain.go (the end), reload.go and follow.go (another config while it runs),
// book.go and score.go (objectives).
package sidecar
