package reserve

import (
	"context"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"

	"github.com/lull-project/lull/benchmarks/evidence"
	"github.com/lull-project/lull/benchmarks/traces"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
)

// Result is all runs on one trace.
type Result struct {
	Command  string     `json:"command"`
	Source   string     `json:"source"`
	Pool     size.Bytes `json:"pool_bytes"`
	Hours    float64    `json:"hours"`
	Requests int        `json:"requests"`
	Fixed    []Outcome  `json:"fixed"`
	Priced   []Outcome  `json:"priced"` // one for each ratio
	Ratios   []float64  `json:"ratios"`
}

// Outcome is one policy's, on the mean over the draws.
type Outcome struct {
	Idle    time.Duration `json:"idle_ns"` // 0: by the model
	Reserve size.Bytes    `json:"reserve_bytes"`
	// Lost is the samples not made that a trainer with all elastic bytes would have
	// made, Misses the requests that waited longer than their slack, Waits those that
	// waited at all.
	Lost    float64 `json:"samples_lost"`
	Misses  float64 `json:"misses"`
	Waits   float64 `json:"waits"`
	Shrinks float64 `json:"shrinks"`
	// Displaced and ShadowMisses are what the core's own books say of a priced run:
	// samples that the reserve cost, and misses expected without it.
	Displaced    float64 `json:"samples_displaced,omitempty"`
	ShadowMisses float64 `json:"shadow_misses,omitempty"`
}

// Cost is an outcome's, in samples.
func (o Outcome) Cost(ratio float64) float64 { return o.Lost + ratio*o.Misses }

// Run replays the trace under every policy, prints the table to w and writes the
// JSON file that the config names.
func Run(ctx context.Context, w io.Writer, cfg Config) (Result, error) {
	if err := cfg.Validate(); err != nil {
		return Result{}, err
	}
	rows, source, err := traces.Rows(cfg.Trace, cfg.Part)
	if err != nil {
		return Result{}, err
	}
	r := Result{Command: cfg.Command, Source: source, Requests: len(rows), Ratios: cfg.Ratios, Hours: rows[len(rows)-1].At.Hours()}
	if r.Pool, err = poolFor(ctx, cfg, rows); err != nil {
		return Result{}, err
	}
	for _, idle := range cfg.Idle {
		for _, kept := range cfg.Reserves {
			o, err := mean(ctx, cfg, rows, r.Pool, func(c *handover.Config) { c.Settle, c.Reserve = idle, kept }, 0)
			if err != nil {
				return r, err
			}
			o.Idle, o.Reserve = idle, kept
			r.Fixed = append(r.Fixed, o)
		}
	}
	for _, ratio := range cfg.Ratios {
		o, err := mean(ctx, cfg, rows, r.Pool, func(*handover.Config) {}, ratio)
		if err != nil {
			return r, err
		}
		r.Priced = append(r.Priced, o)
	}
	if err := r.Table(w); err != nil {
		return r, err
	}
	return r, evidence.Save(w, "reserve", cfg.Out, r)
}

// mean is one policy's outcome over the draws.
func mean(ctx context.Context, cfg Config, rows []traces.Row, pool size.Bytes, change func(*handover.Config), ratio float64) (sum Outcome, err error) {
	n := float64(cfg.Draws)
	for range cfg.Draws {
		o, err := one(ctx, cfg, rows, pool, change, ratio)
		if err != nil {
			return sum, err
		}
		sum.Lost, sum.Misses, sum.Waits, sum.Shrinks = sum.Lost+o.Lost/n, sum.Misses+o.Misses/n, sum.Waits+o.Waits/n, sum.Shrinks+o.Shrinks/n
		sum.Displaced, sum.ShadowMisses = sum.Displaced+o.Displaced/n, sum.ShadowMisses+o.ShadowMisses/n
		cfg.Part.Seed++
	}
	return sum, nil
}

// one replays under one policy; a ratio of 0 prices nothing.
func one(ctx context.Context, cfg Config, rows []traces.Row, pool size.Bytes, change func(*handover.Config), ratio float64) (Outcome, error) {
	w, err := newWorld(cfg, pool, change)
	if err != nil {
		return Outcome{}, err
	}
	prices := handover.Priced{}
	if ratio > 0 {
		prices = handover.Priced{Sample: 1, Miss: ratio}
	}
	if err := w.replay(ctx, rows, prices); err != nil {
		return Outcome{}, err
	}
	length := (w.now - start).Seconds()
	o := Outcome{
		Lost:   topSpeed*length - w.samples + float64(w.shrinks)*pause.Seconds()*topSpeed,
		Misses: float64(w.misses), Waits: float64(w.waits), Shrinks: float64(w.shrinks),
	}
	s := w.core.Snapshot()
	if worst := s.Devices[0].WorstOver; worst > 0 {
		return o, fmt.Errorf("bench reserve: the device was overcommitted by %v; nothing is shown", worst)
	}
	if p := s.Engines[0].Reserve.Priced; p != nil {
		o.Displaced, o.ShadowMisses = p.Displaced, p.ShadowMisses
	}
	return o, nil
}

// poolFor is a pool with a quarter more than the trace ever needs on an engine
// that has it all.
func poolFor(ctx context.Context, cfg Config, rows []traces.Row) (size.Bytes, error) {
	w, err := newWorld(cfg, 1<<46, func(c *handover.Config) { c.Mode, c.StaticKVFrac = handover.ModeStatic, 1 })
	if err != nil {
		return 0, err
	}
	if err := w.replay(ctx, rows, handover.Priced{}); err != nil {
		return 0, err
	}
	return (w.engine.most + w.engine.most/4).CeilTo(size.GiB), nil
}

// Table prints, for each price, the priced run, the fixed reserve that was best
// with the model's own idle time, and the best point of the whole grid.
func (r Result) Table(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s: %d requests in %.2f h, pool %v; costs in samples\n", r.Source, r.Requests, r.Hours, r.Pool); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "a miss\tpriced\tlost\tmisses\tdisplaced\tbooks: misses without\tbest reserve, idle by model\tits cost\tits misses\tbest of grid\tits cost\tits misses\tpriced beats\tworst of grid")
	for i, ratio := range r.Ratios {
		p, own, all := r.Priced[i], r.best(ratio, true), r.best(ratio, false)
		beaten, worst := 0, 0.0
		for _, f := range r.Fixed {
			worst = max(worst, f.Cost(ratio))
			if p.Cost(ratio) < f.Cost(ratio) {
				beaten++
			}
		}
		fmt.Fprintf(t, "%.0f\t%.0f\t%.0f\t%.1f\t%.0f\t%.1f\t%v\t%.0f\t%.1f\t%v, %v\t%.0f\t%.1f\t%d of %d\t%.0f\n", ratio, p.Cost(ratio), p.Lost, p.Misses, p.Displaced, p.ShadowMisses,
			own.Reserve, own.Cost(ratio), own.Misses, all.Reserve, all.idle(), all.Cost(ratio), all.Misses, beaten, len(r.Fixed), worst)
	}
	return t.Flush()
}

// best is the fixed policy that cost least, of those with the model's idle time or
// of all.
func (r Result) best(ratio float64, byModel bool) (best Outcome) {
	best.Lost = math.Inf(1)
	for _, f := range r.Fixed {
		if (f.Idle == 0 || !byModel) && f.Cost(ratio) < best.Cost(ratio) {
			best = f
		}
	}
	return best
}

func (o Outcome) idle() string {
	if o.Idle == 0 {
		return "by model"
	}
	return o.Idle.String()
}
