// Package forecast scores kvbudget's forecasts on request traces, with no engine
// and no sidecar: a trace is replayed as an engine without contention would serve
// it (a prompt's KV from its arrival, a token every so often, all of it gone
// after the last one), and at every decision the largest KV need of the next
// 0.1, 1 and 5 s is predicted and compared with what came.
//
// The same decisions are given to baselines, which see only what had happened by
// then, and to a bound: the same forecaster, told the lengths of answers. Scores are pinball
// loss, coverage (randomised where need has atoms), sharpness and time, over all
// decisions, in each load tercile, and in the 5 s after a burst begins.
//
// Nothing is tuned for a trace, and a missed bar is a result and not an error.
//
//	cfg := forecast.DefaultConfig()
//	cfg.Trace = "conversation_trace.jsonl"
//	result, err := forecast.Run(ctx, os.Stdout, cfg)
//
// Run starts no goroutine; several may run at once.
package forecast
