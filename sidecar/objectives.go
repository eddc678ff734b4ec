package sidecar

import (
	"cmp"
	"slices"

	"github.com/lull-project/lull/slo"
	"github.com/lull-project/lull/telemetry"
)

// SLOState is one objective of the config with what was kept of it.
type SLOState struct {
	Name  string `json:"name"`
	Model string `json:"model,omitempty"`
	Tier  string `json:"tier,omitempty"`
	Hours string `json:"hours,omitempty"`
	// Objectives are the kinds that the config promises or that have a sample.
	Objectives []ObjectiveState `json:"objectives"`
	// Goodput is what requests kept all of their promise; none before the first.
	Goodput []GoodputState `json:"goodput,omitempty"`
}

// ObjectiveState is what was counted of one kind.
type ObjectiveState struct {
	Objective string `json:"objective"`
	// Limit is the config's, in words; clients may have asked for others.
	Limit     string        `json:"limit,omitempty"`
	Target    float64       `json:"target"`
	HardLimit bool          `json:"hard_limit"`
	Total     slo.Tally     `json:"total"`
	Windows   []WindowState `json:"windows"`
	// Latency is of all samples since the start; none for success and for means.
	Latency *LatencyState `json:"latency,omitempty"`
}

// WindowState is one sliding window. What needs a sample is absent without one,
// and the burn rate for a hard limit that was missed.
type WindowState struct {
	Window  string  `json:"window"`
	Covered float64 `json:"covered_s"`
	slo.Tally
	Attainment *float64 `json:"attainment,omitempty"`
	Met        *bool    `json:"met,omitempty"`
	// MissesLeft is how many more of the samples in the window could have missed;
	// below 0 it is overspent.
	MissesLeft int64    `json:"misses_left"`
	BudgetLeft *float64 `json:"budget_left,omitempty"`
	BurnRate   *float64 `json:"burn_rate,omitempty"`
}

// LatencyState is a histogram's quantiles.
type LatencyState struct {
	N    int64   `json:"n"`
	P50  float64 `json:"p50_s"`
	P90  float64 `json:"p90_s"`
	P99  float64 `json:"p99_s"`
	P999 float64 `json:"p999_s"`
	Max  float64 `json:"max_s"`
}

// GoodputState is requests that kept all of their promise, in one window.
type GoodputState struct {
	Window    string  `json:"window"`
	Covered   float64 `json:"covered_s"`
	Good      uint64  `json:"good"`
	Requests  uint64  `json:"requests"`
	PerSecond float64 `json:"good_per_second"`
}

// counted is what the counters say at one moment.
type counted struct {
	*account
	reports []slo.Report
	goodput []slo.Counted
}

// counts reads the counters; the histograms are read without the relays' lock.
func (s *score) counts() []counted {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	accounts := s.book.Load().accounts
	out := make([]counted, 0, len(accounts))
	for _, a := range accounts {
		x := counted{account: a, reports: a.counter.Reports(now.Sub(a.since))}
		if windows, ok := a.counter.Goodput(now.Sub(a.since)); ok {
			x.goodput = windows[:]
		}
		out = append(out, x)
	}
	return out
}

// state is every objective as of now.
func (s *score) state() []SLOState {
	out := []SLOState{}
	for _, c := range s.counts() {
		st := SLOState{Name: c.objective.Name, Model: c.objective.Model, Tier: c.objective.Tier, Hours: c.objective.Hours.String(), Objectives: []ObjectiveState{}}
		for _, r := range withPromised(c.objective, c.reports) {
			st.Objectives = append(st.Objectives, objectiveState(c.objective, r, c.latencies(r.Kind)))
		}
		for _, w := range c.goodput {
			st.Goodput = append(st.Goodput, GoodputState{Window: w.Name, Covered: w.Covered.Seconds(), Good: w.Within, Requests: w.N(), PerSecond: w.PerSecond()})
		}
		out = append(out, st)
	}
	return out
}

// withPromised adds the kinds that are promised and have no sample yet, so that
// an operator sees what was declared before the first request, in the kinds' order.
func withPromised(o slo.Objective, reports []slo.Report) []slo.Report {
	out := slices.Clone(reports)
	for k := slo.TTFT; k <= slo.Success; k++ {
		promised := o.Limit(k) != "" || k == slo.Success && o.Success > 0
		if promised && !slices.ContainsFunc(reports, func(r slo.Report) bool { return r.Kind == k }) {
			out = append(out, slo.Report{Kind: k, Target: o.Target(k)})
		}
	}
	slices.SortStableFunc(out, func(a, b slo.Report) int { return cmp.Compare(a.Kind, b.Kind) })
	return out
}

func objectiveState(declared slo.Objective, r slo.Report, l *telemetry.Latencies) ObjectiveState {
	o := ObjectiveState{Objective: r.Kind.String(), Limit: declared.Limit(r.Kind), Target: r.Target.Share(), HardLimit: r.Target == slo.HardLimit, Total: r.Total, Latency: latencyState(l)}
	o.Windows = []WindowState{}
	for _, w := range r.Windows {
		if w.Name == "" {
			continue // no sample yet
		}
		st := WindowState{Window: w.Name, Covered: w.Covered.Seconds(), Tally: w.Tally, MissesLeft: int64(r.Target.Allowed(w.N())) - int64(w.Misses())}
		st.Attainment = known(w.Attainment())
		st.Met = known(w.Met(r.Target))
		st.BudgetLeft = known(w.BudgetLeft(r.Target))
		st.BurnRate = known(w.BurnRate(r.Target))
		o.Windows = append(o.Windows, st)
	}
	return o
}

// known is nil for a value that is not.
func known[T any](v T, ok bool) *T {
	if !ok {
		return nil
	}
	return &v
}

// latencies is the histogram of a kind, nil where there is none.
func (a *account) latencies(k slo.Kind) *telemetry.Latencies {
	switch k {
	case slo.TTFT:
		return a.ttft
	case slo.TBT:
		return a.tbt
	case slo.E2E:
		return a.e2e
	}
	return nil
}

func latencyState(l *telemetry.Latencies) *LatencyState {
	if l == nil {
		return nil
	}
	q, n := l.Quantiles(0.5, 0.9, 0.99, 0.999)
	if n == 0 {
		return nil
	}
	return &LatencyState{N: n, P50: q[0].Seconds(), P90: q[1].Seconds(), P99: q[2].Seconds(), P999: q[3].Seconds(), Max: l.Longest().Seconds()}
}

// export is the state for /metrics.
func (s *score) export() (all []telemetry.Objective, goodput []telemetry.Goodput) {
	for _, st := range s.state() {
		for _, o := range st.Objectives {
			if len(o.Windows) == 0 {
				continue // a series begins with its first sample
			}
			all = append(all, exported(st.Name, o))
		}
		for _, g := range st.Goodput {
			goodput = append(goodput, telemetry.Goodput{SLO: st.Name, Window: g.Window, PerSecond: g.PerSecond})
		}
	}
	return all, goodput
}

func exported(name string, o ObjectiveState) telemetry.Objective {
	out := telemetry.Objective{SLO: name, Kind: o.Objective, Target: o.Target}
	if l := o.Latency; l != nil {
		out.Quantiles = map[float64]float64{0.5: l.P50, 0.9: l.P90, 0.99: l.P99, 0.999: l.P999, 1: l.Max}
	}
	for _, w := range o.Windows {
		if w.N() == 0 {
			continue
		}
		out.Windows = append(out.Windows, telemetry.ObjectiveWindow{
			Window: w.Window, Attainment: *w.Attainment, BudgetLeft: *w.BudgetLeft, BurnRate: w.BurnRate,
			Within: w.Within, Beyond: w.Beyond, Missing: w.Missing,
		})
	}
	return out
}
