package demo

import (
	"html/template"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
)

// series is one phase's values for a distribution.
type series struct {
	name, title string
	values      []time.Duration
}

// leastMS is where the latency axes begin at the earliest: what is shorter (two
// chunks that one read returned) is drawn there.
const leastMS = 0.2

// plotCDF draws the distributions, log x, with the objective as a vertical
// line; objective 0 draws none. Nothing is trimmed.
func plotCDF(x string, list []series, objective time.Duration, width, height float64) (template.HTML, error) {
	p := newPlot(x, "fraction")
	lowest, highest := 0.0, 0.0
	for _, s := range list {
		xys := cdf(s.values)
		if len(xys) == 0 {
			continue
		}
		if lowest == 0 || xys[0].X < lowest {
			lowest = xys[0].X
		}
		highest = max(highest, xys[len(xys)-1].X)
		if err := line(p, s.title, xys, phaseColors[s.name], 1.6); err != nil {
			return "", err
		}
	}
	if lowest == 0 {
		lowest, highest = 1, 10
	}
	if objective > 0 {
		if err := line(p, "objective", vertical(ms(objective), 1), limitColor, 1.2); err != nil {
			return "", err
		}
		lowest, highest = min(lowest, ms(objective)), max(highest, ms(objective))
	}
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, logTicks{}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = lowest*0.9, highest*1.15, 0, 1.001
	p.Legend.Left = true // a distribution is low on the left
	return svg(p, width, height)
}

// cdf is the empirical distribution in milliseconds, at most about 600 points:
// the ends are always there, so the largest value is drawn.
func cdf(values []time.Duration) plotter.XYs {
	s := slices.Clone(values)
	slices.Sort(s)
	stride := max(1, len(s)/600)
	var xys plotter.XYs
	for i := 0; i < len(s); i += stride {
		xys = append(xys, plotter.XY{X: max(ms(s[i]), leastMS), Y: float64(i+1) / float64(len(s))})
	}
	if n := len(s); n > 0 {
		xys = append(xys, plotter.XY{X: max(ms(s[n-1]), leastMS), Y: 1})
	}
	return xys
}

func ttftSeries(runs []*phaseRun) []series {
	return collectSeries(runs, func(r Result) []time.Duration {
		if d, ok := r.TTFT(); ok {
			return []time.Duration{d}
		}
		return nil
	})
}

func tbtSeries(runs []*phaseRun) []series { return collectSeries(runs, Result.Gaps) }

func collectSeries(runs []*phaseRun, of func(Result) []time.Duration) []series {
	var list []series
	for _, run := range runs {
		s := series{name: run.Phase.Name, title: run.Phase.Title}
		for _, r := range run.Results {
			s.values = append(s.values, of(r)...)
		}
		list = append(list, s)
	}
	return list
}

// handoverSeries are the latencies of the shrinks that freed memory.
func handoverSeries(runs []*phaseRun) []series {
	var list []series
	for _, run := range runs {
		s := series{name: run.Phase.Name, title: run.Phase.Title}
		for _, h := range freedShrinks(run.Events) {
			s.values = append(s.values, h.Took)
		}
		if len(s.values) > 0 {
			list = append(list, s)
		}
	}
	return list
}
