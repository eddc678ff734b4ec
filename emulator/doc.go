// Package emulator is an OpenAI-compatible LLM server without an LLM: its words
// mean nothing, but its timing follows coefficients that were measured on a GPU,
// and its KV cache is real memory under a bound that can be moved.
//
// It never computes anything, so it does not show how compute of two processes
// interferes: while it "computes" it sleeps. Reports made with it must say so.
//
//	srv, err := emulator.Start(ctx, emulator.DefaultConfig())
//	resp, err := http.Post("http://"+srv.Addr()+"/v1/completions", ...)
//	err = srv.Close()
//
// # Words
//
// A token is one whitespace-separated word of the prompt; a chat's prompt is the
// contents of all its messages. Each token of an answer is a word, "w1 ", "w2 ",
// and one chunk. "emulate":{"output_tokens":n} in a request's body is the answer's
// natural length; without it the length is drawn.
//
// # Memory
//
// Model pages (see package model) are one or more whole pages of 2 MiB. A page is
// mapped before its request has the first token that needs it, and unmapped before
// the client sees the end of its answer. held_bytes counts a page from the decision
// to map it until it is back with the kernel, so the process never holds more than
// it says. There is no prefix cache: needed_bytes is what live requests hold by the
// model's books, and held_bytes differs from it only while pages are on their way.
// short_bytes is what live requests need beyond the bound for the tokens known now.
//
// # Time
//
// One goroutine owns the model. It sleeps until a step is meant to end; when the
// host wakes it late it tells the clients late, but the next step still starts when
// it was meant to, as a GPU would (model.Config.CatchUp says up to how late). Tokens
// are never told early. It never waits for a client: a stream is a counter that the
// client's goroutine catches up with. It does not wait for pages either: a goroutine
// of their own fills them while the step takes its time, and a token is late only
// when the pages of its own request are.
package emulator
