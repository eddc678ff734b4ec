package proxybench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"
)

// Run measures all arms, writes the JSON file that the config names and prints
// a table to w. It fails on an error of any request; a bar that is missed is a
// result and not an error.
func Run(ctx context.Context, w io.Writer, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	arms, stop, err := startAll(ctx, cfg)
	if err != nil {
		return err
	}
	defer stop()
	fmt.Fprintf(w, "bench proxy: %d requests an arm, %d clients, %d events each, gap %v; arms interleaved\n",
		cfg.Requests, cfg.Concurrency, cfg.Events, cfg.Gap)
	took := time.Now()
	idle, err := arms[armLull].ask()
	if err != nil {
		return err
	}
	samples, err := measure(ctx, cfg, arms)
	if err != nil {
		return err
	}
	more, err := runLoads(ctx, w, cfg, arms)
	if err != nil {
		return err
	}
	memory, err := measureMemory(ctx, cfg, armLull, arms[armLull], idle.Goroutines)
	if err != nil {
		return err
	}
	r := newResult(cfg, samples, more, memory, time.Since(took))
	if r.Instructions, err = countInstructions(ctx, cfg.Valgrind, arms[armDirect]); err != nil {
		return err
	}
	if err := r.table(w); err != nil {
		return err
	}
	if err := r.save(w, cfg.Out); err != nil {
		return err
	}
	return savePlots(w, cfg.Out, samples)
}

// promptBytes is the size of a prompt in the run of three arms.
const promptBytes = 1000

// arm is what was measured of one.
type arm struct{ first, later []time.Duration }

// measure runs the clients and joins what they measured.
func measure(ctx context.Context, cfg Config, arms rig) (map[string]*arm, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	parts := make([]map[string]*arm, cfg.Concurrency)
	errs := make([]error, cfg.Concurrency)
	var clients sync.WaitGroup
	for i := range cfg.Concurrency {
		n := cfg.Requests / cfg.Concurrency
		if i < cfg.Requests%cfg.Concurrency {
			n++
		}
		clients.Go(func() { // ends with its requests or the context
			if parts[i], errs[i] = client(ctx, cfg, arms, i, n); errs[i] != nil {
				cancel()
			}
		})
	}
	clients.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	all := map[string]*arm{}
	for _, name := range armNames {
		all[name] = &arm{}
		for _, p := range parts {
			all[name].first = append(all[name].first, p[name].first...)
			all[name].later = append(all[name].later, p[name].later...)
		}
	}
	return all, nil
}

// client sends its share: each round goes once to every arm, in a new order,
// with a pause before each request.
func client(ctx context.Context, cfg Config, arms rig, id, n int) (map[string]*arm, error) {
	conns, got := map[string]*conn{}, map[string]*arm{}
	for _, name := range armNames {
		c, err := dial(ctx, target{arm: name, addr: arms[name].addr, prompt: promptBytes, events: cfg.Events})
		if err != nil {
			return nil, err
		}
		defer c.close()
		conns[name] = c
		got[name] = &arm{first: make([]time.Duration, 0, n), later: make([]time.Duration, 0, n*cfg.Events)}
	}
	src := rand.New(rand.NewPCG(cfg.Seed, uint64(id)))
	for round := range cfg.WarmUp + n {
		for _, k := range src.Perm(len(armNames)) {
			a := got[armNames[k]]
			if err := pause(ctx, time.Duration(src.Int64N(2*int64(cfg.Pause)+1))); err != nil {
				return nil, err
			}
			t, err := conns[armNames[k]].call(time.Now(), a.later)
			if err != nil {
				return nil, err
			}
			if round >= cfg.WarmUp {
				a.first, a.later = append(a.first, t.first), t.later
			}
		}
	}
	return got, nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
