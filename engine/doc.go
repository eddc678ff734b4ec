// Package engine reads LLM servers, one kind a file, into one Sample of bytes
// and counts, and sets the KV bound of those that take one.
//
// It knows the servers' own names (vLLM's metrics, llama.cpp's slots, the
// emulator's state) and nothing of budgets, trainers or policy: it never decides,
// never logs and never retries. Every call is one or two bounded HTTP exchanges
// under the caller's context and Config.Timeout, or reads and writes of
// lull-vllm's pages or kvcached's segment; lull-vllm's Shortages starts the one
// goroutine, which Close ends. Probe asks an endpoint what it is.
//
//	e, err := engine.Open(ctx, engine.Config{Name: "main", Kind: "auto", URL: "http://127.0.0.1:8000"})
//	s, err := e.Observe(ctx)          // s.Held, s.Needed, s.Running ...
//	if b, ok := e.(engine.Bounder); ok {
//		s, err = b.SetBound(ctx, epoch, 2*size.GiB)
//	}
//
// An Engine is safe for concurrent use. Aggregates that a server publishes lag
// by a step and by the reading of them: they are for the slow loop, not for the
// millisecond path.
package engine
