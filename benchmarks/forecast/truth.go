package forecast

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"
)

// truth is what came, known only after the replay.
type truth struct {
	need   []float64   // at every tick
	most   [][]float64 // per horizon and decision, the largest need within it
	burst  []bool      // per decision: within 5 s after a burst began
	load   []int       // per decision: load tercile
	bursts int
	limit  int // the longest answer
}

// decisions is how many forecasts are made: as many as have their horizon whole.
func decisions(cfg Config, end time.Duration) int {
	return int((end - slices.Max(cfg.Horizons)) / decide)
}

// observe replays the trace once.
func observe(ctx context.Context, cfg Config, w *world) (*truth, error) {
	end := w.rows[len(w.rows)-1].At
	if end > longest {
		return nil, fmt.Errorf("forecast: the trace is %v long, want at most %v: give a part with --for", end, longest)
	}
	n := decisions(cfg, end)
	if time.Duration(n)*decide <= cfg.Warmup {
		return nil, fmt.Errorf("forecast: the trace is %v long, want more than warmup %v and the longest horizon", end.Round(time.Second), cfg.Warmup)
	}
	t := &truth{burst: make([]bool, n)}
	for _, r := range w.rows {
		t.limit = max(t.limit, r.OutputTokens)
	}
	var b burstWatch
	for k := 0; time.Duration(k)*tick <= end; k++ {
		at := time.Duration(k) * tick
		if k%4096 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		arrived := w.step(at)
		t.need = append(t.need, float64(w.need))
		inBurst := b.see(arrived)
		if i := k / perDecision; k%perDecision == 0 && i < n {
			t.burst[i] = inBurst
		}
	}
	t.bursts = b.began
	for _, h := range cfg.Horizons {
		t.most = append(t.most, largest(t.need, int(h/tick), n))
	}
	t.load = terciles(t.need, n)
	return t, nil
}

// perDecision is the ticks between decisions.
const perDecision = int(decide / tick)

// largest is the maximum of need over each decision's horizon of so many ticks,
// both ends included, by a queue of falling candidates.
func largest(need []float64, ticks, n int) []float64 {
	out := make([]float64, n)
	var queue []int
	next := 0
	for i := range n {
		from, to := i*perDecision, i*perDecision+ticks
		for ; next <= to; next++ {
			for len(queue) > 0 && need[queue[len(queue)-1]] <= need[next] {
				queue = queue[:len(queue)-1]
			}
			queue = append(queue, next)
		}
		for queue[0] < from {
			queue = queue[1:]
		}
		out[i] = need[queue[0]]
	}
	return out
}

// terciles ranks decisions by the need that they start from.
func terciles(need []float64, n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch x, y := need[a*perDecision], need[b*perDecision]; {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
	load := make([]int, n)
	for rank, i := range order {
		load[i] = rank * 3 / n
	}
	return load
}

const (
	burstWindow = int(time.Second / tick)
	burstPast   = int(time.Minute / tick)
	burstAfter  = int(5 * time.Second / tick)
	burstLeast  = 4
	burstTimes  = 2.0
)

// burstWatch marks the 5 s after a burst begins: a second with at least 4
// arrivals and over twice the rate of the minute before it.
type burstWatch struct {
	counts []int // per tick
	recent int   // within burstWindow
	past   int   // within burstPast before that
	left   int
	began  int
}

func (b *burstWatch) see(arrived int) bool {
	b.counts = append(b.counts, arrived)
	n := len(b.counts)
	b.recent += arrived
	if n > burstWindow {
		moved := b.counts[n-1-burstWindow]
		b.recent -= moved
		b.past += moved
	}
	if n > burstWindow+burstPast {
		b.past -= b.counts[n-1-burstWindow-burstPast]
	}
	if b.left > 0 {
		b.left--
	}
	seen := min(max(n-burstWindow, 1), burstPast)
	usual := float64(b.past) * float64(burstWindow) / math.Max(float64(seen), float64(burstWindow))
	if b.left == 0 && n > burstWindow && b.recent >= burstLeast && float64(b.recent) > burstTimes*usual {
		b.left = burstAfter
		b.began++
	}
	return b.left > 0
}
