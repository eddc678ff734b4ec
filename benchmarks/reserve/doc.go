// Package reserve compares the priced reserve with fixed ones: a request trace is
// replayed around the real core, with an engine that queues what its bound has no
// room for and a trainer whose handovers take times drawn from a heavy-tailed law,
// some of them lost. Each run is judged by the training samples that were not made
// and the requests that waited longer than their slack, at given prices.
//
// Virtual time, one seed, no I/O but reading the trace: the same config gives the
// same figures. A fixed grid point that beats the priced choice is a result and
// not an error.
//
//	cfg := reserve.DefaultConfig()
//	result, err := reserve.Run(ctx, os.Stdout, cfg)
//
// Run starts no goroutine; several may run at once.
package reserve
