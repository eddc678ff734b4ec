package proxybench

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// halvings is how often a load that no machine of this size offers is halved.
const halvings = 4

// rig is the run's processes by arm; armAgain is the upstream too, and armBlind
// the same Lull.
type rig map[string]*child

// of is the process that an arm's requests go to.
func (r rig) of(arm string) *child {
	switch arm {
	case armAgain:
		return r[armDirect]
	case armBlind:
		return r[armLull]
	}
	return r[arm]
}

// loadTally is what an arm did under a load: its process's time on a core beside
// the samples, for requests requests.
type loadTally struct {
	tally
	cpu       time.Duration
	requests  int
	overheads []time.Duration
}

// runLoads gives every load to its arms.
func runLoads(ctx context.Context, w io.Writer, cfg Config, arms rig) ([]loadResult, error) {
	var all []loadResult
	for _, l := range loads(cfg) {
		n, err := l.reachable(ctx, arms)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(w, "bench proxy: %s: %d connections (of %d), %d rounds of %v for each of %d arms\n", l.name, n, l.connections, cfg.Rounds, l.slice, len(l.arms))
		got, err := l.rounds(ctx, cfg, arms, n)
		if err != nil {
			return nil, err
		}
		all = append(all, newLoadResult(l, n, got))
	}
	return all, nil
}

// reachable is how many of the load's connections this machine carries through
// every arm: with fewer than all, where events came so late on any that they
// queued. The slices that find it out warm the arms up and are not counted.
func (l load) reachable(ctx context.Context, arms rig) (int, error) {
	n := l.connections
	for half := 0; ; half++ {
		late := time.Duration(0)
		for _, name := range l.arms {
			t, err := l.give(ctx, name, arms.of(name), n)
			if err != nil {
				return 0, err
			}
			late = max(late, time.Duration(spreadOf(t.later).P90*1e3))
		}
		if !l.halve || late < l.gap || half == halvings || n < 2 {
			return n, nil
		}
		n /= 2
	}
}

// rounds gives each arm a slice a round, in a new order each time.
func (l load) rounds(ctx context.Context, cfg Config, arms rig, n int) (map[string]*loadTally, error) {
	src := rand.New(rand.NewPCG(cfg.Seed, 2))
	got := map[string]*loadTally{}
	for _, name := range l.arms {
		got[name] = &loadTally{}
	}
	for range cfg.Rounds {
		for _, k := range src.Perm(len(l.arms)) {
			name := l.arms[k]
			t, err := l.give(ctx, name, arms.of(name), n)
			if err != nil {
				return nil, err
			}
			if t.failed > 0 {
				return nil, fmt.Errorf("bench proxy: %s: %s: %d of %d requests failed: %s", l.name, name, t.failed, t.sent, t.fault)
			}
			sum := got[name]
			sum.add(&t.tally)
			sum.cpu, sum.requests = sum.cpu+t.cpu, sum.requests+t.requests
			sum.overheads = append(sum.overheads, t.overheads...)
		}
	}
	return got, nil
}

// give is one slice of one arm.
func (l load) give(ctx context.Context, name string, c *child, n int) (*loadTally, error) {
	before, err := c.ask()
	if err != nil {
		return nil, err
	}
	began := time.Time{}
	t, err := drive(ctx, l.target(name, c.addr), n, &began, l.turns(&began, n))
	if err != nil {
		return nil, err
	}
	after, err := c.ask()
	if err != nil {
		return nil, err
	}
	// drive sends one request a connection that it does not count.
	return &loadTally{tally: *t, cpu: after.CPU - before.CPU, requests: t.sent + n, overheads: after.Overheads}, nil
}

// turns are the times of requests: the first of each connection spread over an
// answer, so that streams do not march in step, the next when one is answered.
func (l load) turns(began *time.Time, n int) func() (time.Time, bool, bool) {
	var taken atomic.Int64
	spread := min(time.Duration(l.events)*l.gap, l.slice/2)
	return func() (time.Time, bool, bool) {
		k := time.Duration(taken.Add(1) - 1)
		now := time.Now()
		switch {
		case int(k) < n: // also where the slice is over before a busy machine sent any
			return began.Add(k * spread / time.Duration(n)), true, true
		case now.Sub(*began) >= l.slice:
			return time.Time{}, false, false
		}
		return now, false, true
	}
}

// startAll starts the upstream and the two proxies before it.
func startAll(ctx context.Context, cfg Config) (arms rig, stop func(), err error) {
	arms = rig{}
	stop = func() {
		for _, c := range arms {
			c.stop()
		}
	}
	for _, name := range armNames {
		r := role{Name: name, Events: cfg.Events, Gap: cfg.Gap}
		if name != armDirect {
			r = role{Name: name, Upstream: "http://" + arms[armDirect].addr}
		}
		c, err := start(ctx, r)
		if err != nil {
			stop()
			return nil, nil, err
		}
		arms[name] = c
	}
	return arms, stop, nil
}
