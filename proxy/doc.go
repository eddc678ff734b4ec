// Package proxy is Lull's data path: it relays HTTP between clients and an LLM
// server, byte for byte, and times what it relays.
//
// Requests on the known POST paths (OpenAI's chat completions, completions and
// responses, Anthropic's messages, Triton's generate, generate_stream and infer,
// Ollama's, llama.cpp's and SGLang's own) are interpreted: the body is read and
// scanned for the few keys that say what it will cost, a Gate decides whether and
// when it goes, a bounded tap reads a copy of the answer, and an Observer gets one
// Record for every ending. All else passes unchanged: any method, multipart,
// upgrades, trailers, interim responses; but for a wish to go on in another HTTP, and
// the upstream's own address in a redirect (see upgrade.go, redirect.go).
//
// What it never does: decode, re-encode or hold a byte of an answer (but see
// Config.InjectUsage); put a total limit on a stream; retry after a byte of an
// answer was seen; make up a good ending for a broken one; log; fail a client
// because a metric failed. No middleware that recovers panics may stand around it:
// a broken stream is ended by http.ErrAbortHandler, which must reach the HTTP
// server.
//
// Example:
//
//	cfg := proxy.DefaultConfig()
//	cfg.Upstreams = []proxy.Upstream{{Name: "vllm", URL: "http://127.0.0.1:8000"}}
//	p := proxy.New(cfg, gate, observer)
//	defer p.Close()
//	err := proxy.Server(p).Serve(arrival.Listen(listener))
//
// A Proxy never changes: another config is another Proxy (Reconfigured, Draining)
// that shares its connections and counts, for the caller to put in its place.
//
// Concurrency: a Proxy serves any number of requests at once. Each runs on its
// HTTP server's goroutine from arrival to account; Gate and Observer are called
// from there and must be safe for concurrent use. For one request, Admit comes
// first, then Content (and Event), then Done, never two at a time.
package proxy
