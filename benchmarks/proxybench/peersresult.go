package proxybench

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/lull-project/lull/benchmarks/evidence"
)

// peersResult is the JSON file. Times are in microseconds, untrimmed.
type peersResult struct {
	Command string           `json:"command"`
	Machine evidence.Machine `json:"machine"`
	Config  struct {
		Rate        float64 `json:"rate"`
		SliceMS     int64   `json:"slice_ms"`
		Rounds      int     `json:"rounds"`
		Connections int     `json:"connections"`
		Events      int     `json:"events_per_answer"`
		GapUS       int64   `json:"gap_us"`
		Prompt      int     `json:"prompt_bytes"`
		Seed        uint64  `json:"seed"`
	} `json:"config"`
	TookS float64      `json:"took_s"`
	Peers []peerReport `json:"peers"`
	// Capacity is what each arm carried when every connection had a request open.
	Capacity map[string]capacity `json:"capacity"`
	Runs     []peersRun          `json:"runs"`
	Bars     []bar               `json:"bars"`
	Met      bool                `json:"bars_met"`
}

type capacity struct {
	Reached float64 `json:"requests_per_s"`
	N       int     `json:"n"`
	Failed  string  `json:"failed,omitempty"`
}

// peersRun is one of the two runs.
type peersRun struct {
	Name  string             `json:"name"`
	Rate  float64            `json:"offered_per_s"`
	Order []string           `json:"order"`
	Arms  map[string]peerArm `json:"arms"`
	// Added is an arm's quantile minus the first direct arm's; that of "direct again"
	// is the run's own noise.
	Added map[string]added `json:"added_us"`
}

type peerArm struct {
	armResult
	Reached float64 `json:"reached_per_s"`
	Sent    int     `json:"sent"`
	Failed  int     `json:"failed"`
	Fault   string  `json:"first_fault,omitempty"`
	Queued  int     `json:"waited_for_a_connection"`
	Unsent  int     `json:"never_sent"`
}

func newPeersResult(cfg PeersConfig, reports []peerReport) *peersResult {
	r := &peersResult{Command: cfg.Command, Peers: reports, Capacity: map[string]capacity{}}
	r.Config.Rate, r.Config.SliceMS, r.Config.Rounds = cfg.Rate, cfg.Slice.Milliseconds(), cfg.Rounds
	r.Config.Connections, r.Config.Events, r.Config.GapUS = cfg.Connections, cfg.Events, cfg.Gap.Microseconds()
	r.Config.Prompt, r.Config.Seed = cfg.Prompt, cfg.Seed
	return r
}

func newPeersRun(name string, rate float64, arms []contender, got map[string]*tally) peersRun {
	run := peersRun{Name: name, Rate: rate, Arms: map[string]peerArm{}, Added: map[string]added{}}
	for _, c := range arms {
		t := got[c.arm]
		run.Order = append(run.Order, c.arm)
		run.Arms[c.arm] = peerArm{
			armResult: armResult{spreadOf(t.first), spreadOf(t.later)},
			Reached:   t.reached(), Sent: t.sent, Failed: t.failed, Fault: t.fault, Queued: t.queued, Unsent: t.unsent,
		}
	}
	base := run.Arms[armDirect]
	for _, name := range run.Order {
		if name != armDirect {
			run.Added[name] = addedTo(base.armResult, run.Arms[name].armResult)
		}
	}
	return run
}

// finish judges, and reads the machine while its load is that of the runs.
func (r *peersResult) finish(took time.Duration, able []contender) {
	r.TookS, r.Machine = took.Seconds(), evidence.ThisMachine()
	first, second := r.Runs[0].Added, r.Runs[1].Added
	lull, bare := first[armLull], first[armBare]
	r.Bars = []bar{
		{Name: "first event, added P50, us", Value: lull.FirstP50, Limit: 300},
		{Name: "first event, added P99, us", Value: lull.FirstP99, Limit: 1000},
		{Name: "first event, added P50 over the bare proxy's", Value: lull.FirstP50 / max(bare.FirstP50, 1), Limit: 1.3},
	}
	for _, c := range able {
		if c.gateway {
			r.Bars = append(r.Bars, bar{Name: "first event, added P50 at half of the slowest, us, beside " + c.arm, Value: second[armLull].FirstP50, Limit: second[c.arm].FirstP50})
		}
	}
	r.Met = judged(r.Bars)
}

// table prints what a reader wants first.
func (r *peersResult) table(w io.Writer) error {
	for _, run := range r.Runs {
		fmt.Fprintf(w, "\n%s: %.0f requests/s offered\n", run.Name, run.Rate)
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(tw, "us\t\tn\tP50\tP90\tP99\tmax\tadded P50\tadded P99\treached/s\tfailed\t\n")
		for _, name := range run.Order {
			a, d := run.Arms[name], run.Added[name]
			peerRow(tw, name, "first event", a.First, d.FirstP50, d.FirstP99, a)
			peerRow(tw, "", "later events", a.Later, d.LaterP50, d.LaterP99, a)
		}
		if err := tw.Flush(); err != nil {
			return fmt.Errorf("bench peers: write table: %w", err)
		}
	}
	fmt.Fprintf(w, "\n\"%s\" is the noise of client, upstream and machine.\n", armAgain)
	for _, p := range r.Peers {
		if p.Missing != "" {
			fmt.Fprintf(w, "missing  %s: %s\n", p.Name, p.Missing)
			continue
		}
		fmt.Fprintf(w, "%s %s from %s (%s), carries %s\n", p.Name, p.Pinned, p.Registry, p.Reports, r.Capacity[p.Name])
	}
	fmt.Fprintf(w, "lull carries %s, the bare proxy %s, without a proxy %s\n", r.Capacity[armLull], r.Capacity[armBare], r.Capacity[armDirect])
	printBars(w, r.Bars)
	printMachine(w, r.Machine)
	fmt.Fprintf(w, "command: %s\n", r.Command)
	return nil
}

func (c capacity) String() string {
	if c.Failed != "" {
		return "not the second run: " + c.Failed
	}
	return fmt.Sprintf("%.0f requests/s", c.Reached)
}

func peerRow(w io.Writer, arm, what string, s spread, p50, p99 float64, a peerArm) {
	fmt.Fprintf(w, "%s\t%s\t%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%d\t\n", arm, what, s.N, s.P50, s.P90, s.P99, s.Max, p50, p99, a.Reached, a.Failed+a.Unsent)
}

// save writes the JSON file.
func (r *peersResult) save(w io.Writer, file string) error {
	return evidence.Save(w, "bench peers", file, r)
}
