package demo

import (
	"html/template"
	"time"

	"github.com/lull-project/lull/chart"
)

// series is one phase's values for a distribution.
type series struct {
	name, title string
	values      []time.Duration
}

// leastMS is where the latency axes begin at the earliest: what is shorter (two
// chunks that one read returned) is drawn there.
const leastMS = 0.2

// plotCDF draws the distributions with the objective as a vertical line; objective
// 0 draws none.
func plotCDF(x string, list []series, objective time.Duration, width, height float64) (template.HTML, error) {
	c := chart.CDF{X: x, Least: leastMS, Limit: ms(objective), LimitName: "objective"}
	for _, s := range list {
		d := chart.Distribution{Title: s.title, Color: phaseColors[s.name]}
		for _, v := range s.values {
			d.Values = append(d.Values, ms(v))
		}
		c.List = append(c.List, d)
	}
	return c.SVG(width, height)
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
