package forecast

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/lull-project/lull/benchmarks/evidence"
	"github.com/lull-project/lull/size"
)

// The bars: coverage of the 95 % quantile in percent, and its pinball loss
// against the best baseline's.
const (
	leastCover, mostCover = 93.0, 97.0
	leastGain             = 15.0
	// fewest is the decisions below which a group is too small to judge.
	fewest = 50
)

// Result is the JSON file. Bytes are in MiB, shares in percent.
type Result struct {
	Command   string           `json:"command"`
	Machine   evidence.Machine `json:"machine"`
	Trace     string           `json:"trace"`
	Layout    string           `json:"layout"`
	Requests  int              `json:"requests"`
	Seconds   float64          `json:"seconds"`
	MeanLive  float64          `json:"mean_live_requests"`
	Bursts    int              `json:"bursts"`
	Decisions int              `json:"decisions"`
	Horizons  []HorizonResult  `json:"horizons"`
	// Microseconds of one forecast with its four quantiles, and of one event, with
	// the replay's own work.
	ForecastUS float64 `json:"forecast_us"`
	EventUS    float64 `json:"event_us"`
}

// HorizonResult is the scores of one horizon; Methods[0] is Lull's.
type HorizonResult struct {
	Horizon string         `json:"horizon"`
	Methods []MethodResult `json:"methods"`
	// Best is the baseline with the least loss, GainPercent how far below it Lull's
	// is.
	Best        string   `json:"best_baseline"`
	GainPercent float64  `json:"gain_percent"`
	Missed      []string `json:"bars_missed"`
}

// MethodResult is one method's scores for one horizon.
type MethodResult struct {
	Name string `json:"name"`
	// PinballMiB is the mean loss of the 95 % quantile, AboveMiB its mean distance
	// above the present need.
	PinballMiB float64       `json:"pinball_p95_mib"`
	AboveMiB   float64       `json:"p95_above_need_mib"`
	Groups     []GroupResult `json:"coverage"`
}

// GroupResult is coverage over some decisions.
type GroupResult struct {
	Group      string  `json:"group"`
	N          int     `json:"n"`
	P50        float64 `json:"p50"`
	P90        float64 `json:"p90"`
	P95        float64 `json:"p95"`
	P99        float64 `json:"p99"`
	PinballMiB float64 `json:"pinball_p95_mib"`
}

func (p *play) result(source string) Result {
	n := len(p.came.burst)
	r := Result{
		Command: p.cfg.Command, Machine: evidence.ThisMachine(), Trace: source, Layout: p.cfg.Layout.String(), Bursts: p.came.bursts,
		Requests: p.world.next, Seconds: (time.Duration(n) * decide).Seconds(), MeanLive: float64(p.live) / float64(n), Decisions: n,
		ForecastUS: float64(p.took.decide.Nanoseconds()) / 1e3 / float64(n*len(p.arenas)),
		EventUS:    float64(p.took.update.Nanoseconds()) / 1e3 / float64(max(p.world.events, 1)),
	}
	for i, a := range p.arenas {
		h := HorizonResult{Horizon: p.cfg.Horizons[i].String()}
		for k, name := range a.names {
			h.Methods = append(h.Methods, methodResult(name, &a.cards[k]))
		}
		h.judge()
		r.Horizons = append(r.Horizons, h)
	}
	return r
}

func methodResult(name string, c *card) MethodResult {
	mib := float64(size.MiB)
	all := &c[overall]
	m := MethodResult{Name: name, PinballMiB: all.pinball / float64(all.n) / mib, AboveMiB: all.distance / float64(all.n) / mib}
	for g := range groups {
		t := &c[g]
		if t.n == 0 {
			continue
		}
		n := float64(t.n)
		m.Groups = append(m.Groups, GroupResult{
			Group: groupNames[g], N: t.n, PinballMiB: t.pinball / n / mib,
			P50: 100 * t.covered[0] / n, P90: 100 * t.covered[1] / n, P95: 100 * t.covered[2] / n, P99: 100 * t.covered[3] / n,
		})
	}
	return m
}

// judge compares with the bars.
func (h *HorizonResult) judge() {
	best := math.Inf(1)
	h.Missed = []string{}
	for _, m := range h.Methods[1 : len(h.Methods)-1] {
		if m.PinballMiB < best {
			best, h.Best = m.PinballMiB, m.Name
		}
	}
	ours := h.Methods[0]
	h.GainPercent = 100 * (1 - ours.PinballMiB/best)
	if best == 0 {
		h.GainPercent = 0
	}
	if h.GainPercent < leastGain {
		h.Missed = append(h.Missed, fmt.Sprintf("pinball %.1f %% below the best baseline, want %.0f", h.GainPercent, leastGain))
	}
	for _, g := range ours.Groups {
		if g.N >= fewest && (g.P95 < leastCover || g.P95 > mostCover) {
			h.Missed = append(h.Missed, fmt.Sprintf("P95 covers %.1f %% %s, want %.0f to %.0f", g.P95, g.Group, leastCover, mostCover))
		}
	}
}

// Table prints the result as a table of Markdown.
func (r Result) Table(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "trace: %s\nlayout: %s\n", r.Trace, r.Layout)
	fmt.Fprintf(&b, "%d requests in %.0f s, %.1f live on average, %d bursts, %d decisions for each horizon\n", r.Requests, r.Seconds, r.MeanLive, r.Bursts, r.Decisions)
	fmt.Fprintf(&b, "%.1f us a forecast of four quantiles, %.2f us an event with the replay and both forecasters\n", r.ForecastUS, r.EventUS)
	for _, h := range r.Horizons {
		fmt.Fprintf(&b, "\n| largest need within %s | P95 loss MiB | P95 above need MiB | P50 | P90 | P95 | P99 | P95: light | middle | heavy | after bursts |\n|---|---|---|---|---|---|---|---|---|---|---|\n", h.Horizon)
		for _, m := range h.Methods {
			fmt.Fprintf(&b, "| %s | %.2f | %.1f |", m.Name, m.PinballMiB, m.AboveMiB)
			o := m.group(overall)
			fmt.Fprintf(&b, " %.1f | %.1f | %.1f | %.1f |", o.P50, o.P90, o.P95, o.P99)
			for g := light; g < groups; g++ {
				if x := m.group(g); x.N > 0 {
					fmt.Fprintf(&b, " %.1f |", x.P95)
				} else {
					b.WriteString(" - |")
				}
			}
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "\nloss %.1f %% below the best baseline, %s; bars missed: %s\n", h.GainPercent, h.Best, missed(h.Missed))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func missed(bars []string) string {
	if len(bars) == 0 {
		return "none"
	}
	return strings.Join(bars, "; ")
}

func (m MethodResult) group(g group) GroupResult {
	for _, x := range m.Groups {
		if x.Group == groupNames[g] {
			return x
		}
	}
	return GroupResult{}
}
