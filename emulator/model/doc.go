// Package model is an LLM server's scheduler and clockwork without the LLM
// server: continuous batching with chunked prefill as vLLM V1 does it, step
// times from calibrated coefficients, and KV cache pages under a bound.
//
// It does no I/O, reads no clock, logs nothing and starts no goroutine; time is
// an offset that the caller passes in, and the same calls with the same seed
// give the same events. The emulator drives it against the wall clock and maps
// real memory as its events say; a simulator drives it on a virtual clock.
//
//	m, err := model.New(model.DefaultConfig(), 1)
//	err = m.Submit(0, model.Request{ID: 7, PromptTokens: 241, OutputTokens: 61})
//	for at, ok := m.NextAt(); ok; at, ok = m.NextAt() {
//		for _, e := range m.Step(at) {
//			// e.Kind: Map and Unmap move memory, Token is text for the client.
//		}
//	}
//
// A Model belongs to one goroutine. A slice that Step, Abort or SetBound
// returned is overwritten by the next call.
//
// # One step
//
// A step is one forward pass. Running requests come first, in order of arrival:
// each decoding one computes one token; one that is still in prefill (only the
// last can be) takes what MaxBatchedTokens leaves. Then waiting requests are
// admitted in order of arrival while tokens, MaxSeqs and pages last. A request is
// admitted only when all of its known tokens fit under the bound now (vLLM's
// scheduler_reserve_full_isl, its default: without it a long prompt takes pages,
// gets stuck, and gives them back again), but takes its pages chunk by chunk.
//
// # Short of pages
//
// A running request that needs a page above the bound preempts the last-come
// running one, as often as it takes. A preempted request loses its pages, keeps
// its generated tokens, and goes to the front of the queue, to be computed again.
// The only running request is preempted only when it needs more than the bound.
// When SetBound lowers the bound under the pages in use, nothing is killed: no
// page is mapped and nobody is admitted until enough has been freed.
//
// # Pages and blocks
//
// A block holds BlockTokens tokens of one request. A page is what memory is
// mapped and bounded by; it holds BlocksPerPage blocks, perhaps of several
// requests. A page is mapped when its first block is taken and unmapped when its
// last one is given back, so mapped pages never exceed the bound.
package model
