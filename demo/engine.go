package demo

import (
	"context"
	"errors"
	"time"

	"github.com/lull-project/lull/size"
)

// The LLM servers that the demo can run.
const (
	EngineEmulator = "emulator"
	EngineVLLM     = "vllm"
)

// Engines are the names that --engine takes.
func Engines() []string { return []string{EngineEmulator, EngineVLLM} }

// servedModel is the name that requests ask for.
const servedModel = "demo"

// llmServer is a running LLM server.
type llmServer struct {
	proc *proc
	url  string
	// pids are the processes whose bytes are the server's on the device, baseline
	// what they had before they took any of it.
	pids     []int
	baseline size.Bytes
	// kind, pid and page are what lull.yaml says of it.
	kind string
	pid  int
	page string
	// kept says that it serves all phases: the runner stops it, not the phase.
	kept bool
}

// stop ends the server with a phase, unless it is kept.
func (e *llmServer) stop() {
	if e != nil && !e.kept {
		e.proc.stop(stopGrace)
	}
}

// startEngine starts the LLM server of a phase, or hands out the one that is
// kept, and waits until it serves.
//
// Alone on the device the emulator is a stock server: its pool is allocated at
// the start and stays, so that it is compared at its best.
func (r *runner) startEngine(ctx context.Context, logs string, alone bool) (*llmServer, error) {
	if r.opts.Engine == EngineVLLM {
		if r.vllm == nil {
			return nil, errors.New("vLLM was not started")
		}
		return r.vllm, r.vllm.proc.ended()
	}
	return r.startEmulator(ctx, logs, alone)
}

// poll asks every period until it is so, the limit is over or ctx ends; the
// last two answer false.
func poll(ctx context.Context, limit, period time.Duration, isSo func() bool) bool {
	deadline := time.Now().Add(limit)
	for !isSo() {
		if time.Now().After(deadline) || !sleep(ctx, period) {
			return false
		}
	}
	return true
}
