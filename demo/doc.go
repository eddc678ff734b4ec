// Package demo shows Lull's main job on one machine and measures it: an LLM
// server, the sidecar and a real PyTorch training job share one "device" of
// real memory while a slice of a real trace is replayed.
//
// Run starts every process fresh for each phase, sends the load itself (an open
// loop: a slow server never slows the senders), and audits the device itself:
// the auditor reads /proc on its own and never asks the sidecar how much memory
// anybody holds. What the sidecar says of its orders is used for one thing
// only, the ceiling that a trainer has promised to keep.
//
// The package decides nothing about memory and contains no part of the product;
// it starts `lull emulate`, `lull serve` and the trainer as child processes and
// ends them by pid.
//
//	summary, err := demo.Run(ctx, os.Stdout, demo.DefaultOptions())
//
// Run may be called once at a time per output folder. Every goroutine that it
// starts has ended when it returns.
package demo
