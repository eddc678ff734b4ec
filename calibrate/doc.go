// Package calibrate measures what an idle LLM server takes by itself and makes
// objectives of it: prompt lengths times answer lengths, after a warm-up, one
// request at a time in a drawn order. It fits TTFT as a line over prompt tokens
// (slo.FitTTFT), takes the mean gap for TBT, prints both with their spread, and
// writes multiples of them into a config file.
//
// It never writes from a server that served somebody else, or whose figures
// spread further than the caller allows, unless it is told to; it never changes
// anything else in the file. It goes to the server itself, not through a sidecar,
// sends at most one request at a time, and knows the server's own count of
// running requests from package engine.
//
//	cfg := calibrate.DefaultConfig()
//	cfg.Upstream, cfg.Model, cfg.Write = "http://127.0.0.1:8000", "m", "lull.yaml"
//	err := calibrate.Run(ctx, os.Stdout, cfg)
//
// Concurrency: a run belongs to one goroutine.
package calibrate
