// Package proxybench measures what Lull's data path adds to the time of an
// event: against the same calls made directly, and through a bare
// httputil.ReverseProxy, all interleaved in one run.
//
// The fake upstream and the two proxies are processes of their own, started
// from this program again: a program that calls Run calls Child first. The
// client is this process; upstream and client share the machine's clock, so an
// event that carries the time at which it was written shows its delay.
//
// It never claims more than it measured: nothing is trimmed, and the result
// says the machine, the command and n.
//
// Example:
//
//	if proxybench.Child() {
//		return
//	}
//	err := proxybench.Run(ctx, os.Stdout, proxybench.DefaultConfig())
//
// Concurrency: Run starts goroutines and processes and ends them before it
// returns; one Run at a time, since two would measure each other.
package proxybench
