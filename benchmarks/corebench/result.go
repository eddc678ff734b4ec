package corebench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/lull-project/lull/benchmarks/evidence"
)

// The bars: microseconds of one step, and percent of a core.
const (
	stepLimitUS = 20.0
	idleLimit   = 1.0
)

// result is the JSON file. Times are in microseconds, untrimmed.
type result struct {
	Command  string            `json:"command"`
	Machine  evidence.Machine  `json:"machine"`
	Requests int               `json:"live_requests"`
	Steps    map[string]spread `json:"step_us"`
	Idle     idle              `json:"idle_sidecar"`
	Bars     []bar             `json:"bars"`
	Met      bool              `json:"bars_met"`
}

type spread struct {
	N    int     `json:"n"`
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// idle is the sidecar in front of an idle server; n is 1.
type idle struct {
	PercentOfACore float64 `json:"percent_of_a_core"`
	SettleS        float64 `json:"settle_s"`
	WindowS        float64 `json:"window_s"`
}

type bar struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Limit float64 `json:"limit"`
	Met   bool    `json:"met"`
}

func newResult(cfg Config, took map[string][]time.Duration, share float64) result {
	r := result{
		Command: cfg.Command, Machine: evidence.ThisMachine(), Requests: cfg.Requests, Steps: map[string]spread{}, Met: true,
		Idle: idle{PercentOfACore: 100 * share, SettleS: cfg.Settle.Seconds(), WindowS: cfg.Window.Seconds()},
	}
	for _, kind := range kinds {
		s := spreadOf(took[kind])
		r.Steps[kind] = s
		r.judge(bar{Name: "step " + kind + ", mean us", Value: s.Mean, Limit: stepLimitUS, Met: s.Mean <= stepLimitUS})
		r.judge(bar{Name: "step " + kind + ", P99 us", Value: s.P99, Limit: stepLimitUS, Met: s.P99 <= stepLimitUS})
	}
	r.judge(bar{Name: "idle sidecar, percent of a core", Value: r.Idle.PercentOfACore, Limit: idleLimit, Met: r.Idle.PercentOfACore < idleLimit})
	return r
}

func (r *result) judge(b bar) {
	r.Bars = append(r.Bars, b)
	r.Met = r.Met && b.Met
}

// spreadOf is the distribution in microseconds: a median, and a P99 by nearest
// rank.
func spreadOf(d []time.Duration) spread {
	n := len(d)
	if n == 0 {
		return spread{}
	}
	d = slices.Sorted(slices.Values(d))
	var sum time.Duration
	for _, v := range d {
		sum += v
	}
	us := func(v time.Duration) float64 { return float64(v) / 1e3 }
	rank := int(math.Ceil(0.99 * float64(n)))
	return spread{N: n, Mean: us(sum) / float64(n), P50: us(d[(n-1)/2]+d[n/2]) / 2, P99: us(d[rank-1]), Max: us(d[n-1])}
}

// table prints what a reader wants first.
func (r result) table(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tw, "us of one step, %d live requests\tn\tmean\tP50\tP99\tmax\t\n", r.Requests)
	for _, kind := range kinds {
		s := r.Steps[kind]
		fmt.Fprintf(tw, "%s\t%d\t%.2f\t%.2f\t%.2f\t%.1f\t\n", kind, s.N, s.Mean, s.P50, s.P99, s.Max)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("bench core: write table: %w", err)
	}
	fmt.Fprintf(w, "idle sidecar: %.2f %% of a core over %.0f s\n", r.Idle.PercentOfACore, r.Idle.WindowS)
	for _, b := range r.Bars {
		word := "met"
		if !b.Met {
			word = "missed"
		}
		fmt.Fprintf(w, "%-6s  %s: %.2f, limit %.0f\n", word, b.Name, b.Value, b.Limit)
	}
	fmt.Fprintf(w, "%s, %d cores, %s, load average at the end %s\n", r.Machine.CPU, r.Machine.Cores, r.Machine.Go, r.Machine.Load)
	return nil
}

// save writes the JSON file.
func (r result) save(w io.Writer, file string) error {
	return evidence.Save(w, "bench core", file, r)
}
