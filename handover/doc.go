// Package handover decides who holds the memory of a device: the KV cache of
// LLM engines or the activations of training jobs. It keeps the ledger, the
// queue of held requests and the epochs of every order.
//
// It is a pure step function: an event in, actions out. It never opens a
// socket, starts a goroutine, reads a clock, logs, draws a random number or
// depends on the order of a map; the same events give the same actions. The
// sidecar and the simulator drive the same code.
//
//	h, err := handover.New(cfg)
//	for ev := range events {
//		for _, a := range h.Step(ev) {
//			perform(a) // in this order; its result comes back as an event
//		}
//	}
//
// Reading order: event.go and action.go say what goes in and out, ledger.go
// holds the invariant, policy.go the targets, shrink.go what is asked back of
// training, raise.go and grow.go who gets what is free,
// insurance.go and book.go the priced reserve, orders.go the way from an order to
// the device's confirmation, queue.go the requests. The handlers of events are in
// on_requests.go, on_engine.go and on_trainer.go.
//
// A breach of the invariant that the core itself caused is a panic: its books
// are wrong, and nothing it would say next is worth doing. A breach caused by
// the world (an engine or trainer above its promise, a device that shrank) is
// recorded in State, stops growth and makes training shrink.
//
// Concurrency: one goroutine owns a Handover; nothing here may be called from
// two at once. The slice that Step returns is the caller's.
package handover
