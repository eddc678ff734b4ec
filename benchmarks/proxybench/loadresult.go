package proxybench

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// loadResult is one load of the JSON file. Times are in microseconds, untrimmed.
type loadResult struct {
	Name string `json:"name"`
	// Connections were open at once, of Wanted: fewer where the machine did not
	// carry all through every arm.
	Connections int                `json:"connections"`
	Wanted      int                `json:"connections_wanted"`
	Events      int                `json:"events_per_answer"`
	GapUS       int64              `json:"gap_us"`
	Prompt      int                `json:"prompt_bytes"`
	SliceMS     int64              `json:"slice_ms"`
	Order       []string           `json:"order"`
	Arms        map[string]loadArm `json:"arms"`
	// Added is an arm's quantile minus the first direct arm's; that of "direct again"
	// is the load's own noise.
	Added map[string]added `json:"added_us"`
}

type loadArm struct {
	armResult
	// CPU is the proxy process's time on a core for one event, user and system; the
	// request's own share is in it.
	CPU float64 `json:"cpu_us_per_event,omitempty"`
	// Overhead is Lull's own account of its time in a request.
	Overhead *spread `json:"own_overhead_us,omitempty"`
}

func newLoadResult(l load, n int, got map[string]*loadTally) loadResult {
	r := loadResult{
		Name: l.name, Connections: n, Wanted: l.connections, Events: l.events, GapUS: l.gap.Microseconds(), Prompt: l.prompt,
		SliceMS: l.slice.Milliseconds(), Order: l.arms, Arms: map[string]loadArm{}, Added: map[string]added{},
	}
	for _, name := range l.arms {
		t := got[name]
		a := loadArm{armResult: armResult{spreadOf(t.first), spreadOf(t.later)}}
		if name != armDirect && name != armAgain {
			a.CPU = float64(t.cpu) / float64(time.Microsecond) / float64(max(1, t.requests*l.events))
		}
		if name == armLull {
			s := spreadOf(t.overheads)
			a.Overhead = &s
		}
		r.Arms[name] = a
	}
	for _, name := range l.arms[1:] {
		r.Added[name] = addedTo(r.Arms[armDirect].armResult, r.Arms[name].armResult)
	}
	return r
}

// bars are those of the loads.
func loadBars(list []loadResult) []bar {
	var bars []bar
	for _, l := range list {
		lull := l.Added[armLull]
		switch l.Name {
		case loadStreams:
			bars = append(bars,
				bar{Name: fmt.Sprintf("%d streams x 50/s, later events, added P50, us", l.Connections), Value: lull.LaterP50, Limit: 50},
				bar{Name: fmt.Sprintf("%d streams x 50/s, later events, added P99, us", l.Connections), Value: lull.LaterP99, Limit: 300})
		case loadLong:
			bars = append(bars, bar{Name: fmt.Sprintf("%d connections with 220 KB prompts, first event, added P50, us", l.Connections), Value: lull.FirstP50, Limit: 2000})
		case loadLongest:
			bars = append(bars, bar{Name: fmt.Sprintf("%d connections with 1 MB prompts, first event, added P50, us", l.Connections), Value: lull.FirstP50, Limit: 8000})
		case loadSingle:
			own := l.Arms[armLull].Overhead
			bars = append(bars, bar{Name: "Lull's own overhead at P50 differs from the added P50, share of the latter", Value: apart(own.P50, lull.FirstP50), Limit: 0.2})
		}
	}
	return bars
}

// apart is how far own is from outside, as a share of outside.
func apart(own, outside float64) float64 {
	d := own - outside
	if d < 0 {
		d = -d
	}
	return d / max(outside, 1)
}

// memoryBars are those of Lull's process.
func memoryBars(m memoryResult) []bar {
	return []bar{
		{Name: "an open stream, KiB", Value: float64(m.PerStream) / 1024, Limit: 64},
		{Name: fmt.Sprintf("memory after %d streams over that before", m.Many-m.Many/5), Value: float64(m.After) / max(float64(m.Before), 1), Limit: 1.1},
		{Name: "goroutines left of all connections", Value: float64(m.Left), Limit: 0},
		{Name: "growth beside a client that does not read 200 MB, MiB", Value: float64(m.Slow) / (1 << 20), Limit: 2},
	}
}

// print is the load's part of the table.
func (r loadResult) print(w io.Writer) error {
	fmt.Fprintf(w, "\n%s: %d connections, %d events %v apart, prompts of %d bytes\n", r.Name, r.Connections, r.Events, time.Duration(r.GapUS)*time.Microsecond, r.Prompt)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tw, "us\t\tn\tP50\tP90\tP99\tmax\tadded P50\tadded P99\t\n")
	for _, name := range r.Order {
		a, d := r.Arms[name], r.Added[name]
		row(tw, name, "first event", a.First, d.FirstP50, d.FirstP99)
		if a.Later.N > 0 {
			row(tw, "", "later events", a.Later, d.LaterP50, d.LaterP99)
		}
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("bench proxy: write table: %w", err)
	}
	for _, name := range r.Order {
		if a := r.Arms[name]; a.CPU > 0 {
			fmt.Fprintf(w, "%s: %.1f us of a core for an event\n", name, a.CPU)
		}
		if own := r.Arms[name].Overhead; own != nil {
			fmt.Fprintf(w, "%s: its own overhead a request, us: P50 %.0f, P90 %.0f, P99 %.0f, max %.0f, n %d\n", name, own.P50, own.P90, own.P99, own.Max, own.N)
		}
	}
	return nil
}
