// Package peers installs, starts and ends the proxies that Lull is measured
// beside: nginx, HAProxy, Caddy, LiteLLM, vllm-router and Portkey.
//
// Each is installed once from its registry at a pinned version into the cache
// folder, never into the system, and runs on a free port of the loopback with
// the settings that its own documentation gives for streams (conf/, one reason
// a line). A peer that cannot be installed is an error that names it: the caller
// reports it and goes on without.
//
// It measures nothing, sends no request of its own and ends no process but those
// that it started.
//
//	in, err := peer.Install(ctx, cache, os.Stderr)
//	p, err := in.Start(ctx, "127.0.0.1:8000", ready)
//	defer p.Stop()
//
// Concurrency: a Peer is plain data; Install of one version waits for another
// process that installs it. Start starts one goroutine, which ends with the
// process; Stop waits for both.
package peers
