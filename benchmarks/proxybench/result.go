package proxybench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/lull-project/lull/benchmarks/evidence"
)

// result is the JSON file. Times are in microseconds, untrimmed.
type result struct {
	Command string           `json:"command"`
	Machine evidence.Machine `json:"machine"`
	Config  struct {
		Requests    int    `json:"requests_per_arm"`
		Concurrency int    `json:"concurrency"`
		Events      int    `json:"events_per_answer"`
		GapUS       int64  `json:"gap_us"`
		PauseUS     int64  `json:"pause_mean_us"`
		Seed        uint64 `json:"seed"`
	} `json:"config"`
	TookS float64              `json:"took_s"`
	Arms  map[string]armResult `json:"arms"`
	// Added is an arm's quantile minus the direct arm's.
	Added  map[string]added `json:"added_us"`
	Loads  []loadResult     `json:"loads"`
	Memory memoryResult     `json:"memory"`
	// Instructions are counted after the rest; nothing else is from that run.
	Instructions instructions `json:"instructions"`
	Bars         []bar        `json:"bars"`
	Met          bool         `json:"bars_met"`
}

type armResult struct {
	First spread `json:"first_event_us"`
	Later spread `json:"later_event_us"`
}

// spread is a distribution; P50Low and P50High are the 95 % interval of its
// median, from order statistics.
type spread struct {
	N       int     `json:"n"`
	P50     float64 `json:"p50"`
	P50Low  float64 `json:"p50_low"`
	P50High float64 `json:"p50_high"`
	P90     float64 `json:"p90"`
	P99     float64 `json:"p99"`
	Max     float64 `json:"max"`
}

type added struct {
	FirstP50 float64 `json:"first_event_p50"`
	FirstP99 float64 `json:"first_event_p99"`
	LaterP50 float64 `json:"later_event_p50"`
	LaterP99 float64 `json:"later_event_p99"`
}

type bar struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Limit float64 `json:"limit"`
	Met   bool    `json:"met"`
}

func newResult(cfg Config, arms map[string]*arm, more []loadResult, memory memoryResult, took time.Duration) result {
	r := result{Command: cfg.Command, Machine: evidence.ThisMachine(), TookS: took.Seconds(), Arms: map[string]armResult{}, Added: map[string]added{}}
	r.Config.Requests, r.Config.Concurrency, r.Config.Events = cfg.Requests, cfg.Concurrency, cfg.Events
	r.Config.GapUS, r.Config.PauseUS, r.Config.Seed = cfg.Gap.Microseconds(), cfg.Pause.Microseconds(), cfg.Seed
	for _, name := range armNames {
		r.Arms[name] = armResult{spreadOf(arms[name].first), spreadOf(arms[name].later)}
	}
	base := r.Arms[armDirect]
	for _, name := range armNames[1:] {
		r.Added[name] = addedTo(base, r.Arms[name])
	}
	r.Loads, r.Memory = more, memory
	r.judge()
	return r
}

func addedTo(base, a armResult) added {
	return added{
		FirstP50: a.First.P50 - base.First.P50, FirstP99: a.First.P99 - base.First.P99,
		LaterP50: a.Later.P50 - base.Later.P50, LaterP99: a.Later.P99 - base.Later.P99,
	}
}

// judge compares with the bars that the project sets itself. For the ratio, a bare
// proxy that seems to add less than 1 us counts as 1 us.
func (r *result) judge() {
	lull, bare := r.Added[armLull], r.Added[armBare]
	r.Bars = []bar{
		{Name: "first event, added P50, us", Value: lull.FirstP50, Limit: 300},
		{Name: "first event, added P50 over the bare proxy's", Value: lull.FirstP50 / max(bare.FirstP50, 1), Limit: 1.3},
		{Name: "first event, added P99, us", Value: lull.FirstP99, Limit: 1000},
		{Name: "later events, added P50, us", Value: lull.LaterP50, Limit: 50},
	}
	r.Bars = append(r.Bars, loadBars(r.Loads)...)
	r.Bars = append(r.Bars, memoryBars(r.Memory)...)
	r.Met = judged(r.Bars)
}

// judged fills in which bars are met, and tells whether all are.
func judged(bars []bar) bool {
	all := true
	for i := range bars {
		bars[i].Met = bars[i].Value <= bars[i].Limit
		all = all && bars[i].Met
	}
	return all
}

func spreadOf(d []time.Duration) spread {
	d = slices.Sorted(slices.Values(d))
	n := len(d)
	half := 1.96 * math.Sqrt(float64(n)) / 2
	at := func(i float64) float64 {
		if n == 0 {
			return 0
		}
		return float64(d[min(max(int(i), 0), n-1)]) / 1e3
	}
	q := func(p float64) float64 { return at(math.Ceil(p*float64(n)) - 1) }
	return spread{
		N: n, P50: q(0.5), P50Low: at(float64(n)/2 - half), P50High: at(float64(n)/2 + half),
		P90: q(0.9), P99: q(0.99), Max: at(float64(n - 1)),
	}
}

// table prints what a reader wants first.
func (r result) table(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tw, "us\t\tn\tP50\tP90\tP99\tmax\tadded P50\tadded P99\t\n")
	for _, name := range armNames {
		a, d := r.Arms[name], r.Added[name]
		row(tw, name, "first event", a.First, d.FirstP50, d.FirstP99)
		row(tw, name, "later events", a.Later, d.LaterP50, d.LaterP99)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("bench proxy: write table: %w", err)
	}
	for _, l := range r.Loads {
		if err := l.print(w); err != nil {
			return err
		}
	}
	printMemory(w, armLull, r.Memory)
	r.Instructions.print(w)
	printBars(w, r.Bars)
	printMachine(w, r.Machine)
	return nil
}

func printBars(w io.Writer, bars []bar) {
	for _, b := range bars {
		word := "met"
		if !b.Met {
			word = "missed"
		}
		fmt.Fprintf(w, "%-6s  %s: %.2f, limit %.2f\n", word, b.Name, b.Value, b.Limit)
	}
}

func printMachine(w io.Writer, m evidence.Machine) {
	fmt.Fprintf(w, "%s, %d cores, GOMAXPROCS %d, %s, load average at the end %s\n", m.CPU, m.Cores, m.GOMAXPROCS, m.Go, m.Load)
}

func row(w io.Writer, arm, what string, s spread, p50, p99 float64) {
	fmt.Fprintf(w, "%s\t%s\t%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t\n", arm, what, s.N, s.P50, s.P90, s.P99, s.Max, p50, p99)
}

// save writes the JSON file.
func (r result) save(w io.Writer, file string) error {
	return evidence.Save(w, "bench proxy", file, r)
}
