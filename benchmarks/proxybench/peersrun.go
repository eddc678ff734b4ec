package proxybench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"github.com/lull-project/lull/benchmarks/peers"
)

// RunPeers measures Lull beside other proxies in two runs: Lull, the bare
// ReverseProxy and the peers that are no LLM gateways at a set rate, then all of
// them at half of what the slowest can carry. Arms take turns in slices, in a new
// order each round. A peer that cannot be had is named with the reason, and a bar
// that is missed is a result: neither is an error.
func RunPeers(ctx context.Context, w io.Writer, cfg PeersConfig) (err error) {
	if err := cfg.Validate(); err != nil {
		return err
	}
	chosen, err := peers.Named(cfg.Peers)
	if err != nil {
		return fmt.Errorf("bench peers: %w", err)
	}
	f, err := startField(ctx, w, cfg, chosen)
	if err != nil {
		return fmt.Errorf("bench peers: %w", err)
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	took := time.Now()
	r := newPeersResult(cfg, f.reports)
	var plain []contender
	for _, c := range f.arms {
		if !c.gateway {
			plain = append(plain, c)
		}
	}
	if err := r.run(ctx, w, cfg, "set rate", cfg.Rate, plain); err != nil {
		return err
	}
	slowest, able, err := r.race(ctx, w, cfg, f.arms)
	if err != nil {
		return err
	}
	if err := r.run(ctx, w, cfg, "half of the slowest", math.Floor(slowest/2), able); err != nil {
		return err
	}
	r.finish(time.Since(took), able)
	if err := r.table(w); err != nil {
		return err
	}
	return r.save(w, cfg.Out)
}

// crowd is how many times more connections a race has than a slice: an answer
// takes the upstream's gaps at least, so with few connections no arm is busy.
const crowd = 4

// race finds what each arm can carry. An arm that fails requests then takes no
// part in what follows, and the result says so.
func (r *peersResult) race(ctx context.Context, w io.Writer, cfg PeersConfig, arms []contender) (slowest float64, able []contender, err error) {
	slowest = math.Inf(1)
	for _, c := range arms {
		t, err := race(ctx, c.target, crowd*cfg.Connections, cfg.Capacity)
		if ctx.Err() != nil {
			return 0, nil, ctx.Err()
		}
		if err == nil && t.failed > 0 {
			err = fmt.Errorf("%d of %d requests failed: %s", t.failed, t.sent, t.fault)
		}
		if err != nil {
			r.Capacity[c.arm] = capacity{Failed: err.Error()}
			fmt.Fprintf(w, "bench peers: %s left out of the second run: %v\n", c.arm, err)
			continue
		}
		r.Capacity[c.arm] = capacity{Reached: t.reached(), N: len(t.first)}
		able = append(able, c)
		if c.arm != armDirect && c.arm != armAgain {
			slowest = min(slowest, t.reached())
		}
	}
	if math.IsInf(slowest, 1) || slowest < 2 {
		return 0, nil, fmt.Errorf("bench peers: got no proxy that carries 2 requests a second, want one to set the second run's rate by; capacities: %v", r.Capacity)
	}
	return slowest, able, nil
}

// run gives every arm its slices: one to warm up, then one a round.
func (r *peersResult) run(ctx context.Context, w io.Writer, cfg PeersConfig, name string, rate float64, arms []contender) error {
	fmt.Fprintf(w, "bench peers: %s: %.0f requests/s, %d arms, %d rounds of %v each\n", name, rate, len(arms), cfg.Rounds, cfg.Slice)
	src := rand.New(rand.NewPCG(cfg.Seed, 1))
	got := map[string]*tally{}
	for _, c := range arms {
		got[c.arm] = &tally{}
	}
	for round := range cfg.Rounds + 1 {
		due := arrivals(cfg.Seed+uint64(round), rate, cfg.Slice)
		for _, k := range src.Perm(len(arms)) {
			t, err := slice(ctx, arms[k].target, cfg.Connections, due, cfg.Slice)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err != nil: // the arm answers nobody: all of the slice is lost
				t = &tally{failed: len(due), sent: len(due), fault: err.Error(), busy: cfg.Slice}
			}
			if round > 0 {
				got[arms[k].arm].add(t)
			}
		}
	}
	r.Runs = append(r.Runs, newPeersRun(name, rate, arms, got))
	return nil
}
