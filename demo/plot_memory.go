package demo

import (
	"html/template"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/lull-project/lull/chart"
	"github.com/lull-project/lull/size"
)

// plotColumns is the resolution of the memory plots in time: of all samples in
// a column the one with the most bytes on the device is drawn, so that no peak
// is lost.
const plotColumns = 900

// plotMemory draws who held how much during the load, with the orders to shrink
// as ticks above the capacity line.
func plotMemory(run *phaseRun, width, height float64) (template.HTML, error) {
	p := chart.New("seconds", "MiB on the device")
	zero, engine, floor, all := memoryCurves(run)
	if err := chart.Band(p, "", zero, engine, engineColor); err != nil {
		return "", err
	}
	if run.Train != nil {
		if err := chart.Band(p, "", engine, floor, floorColor); err != nil {
			return "", err
		}
		if err := chart.Band(p, "", floor, all, trainColor); err != nil {
			return "", err
		}
	}
	capacity := inMiB(run.Device.Capacity)
	seconds := run.End.Sub(run.Start).Seconds()
	if err := chart.Line(p, "", plotter.XYs{{X: 0, Y: capacity}, {X: seconds, Y: capacity}}, chart.Limit, 1.2); err != nil {
		return "", err
	}
	if err := markOrders(p, run, capacity); err != nil {
		return "", err
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, seconds, 0, capacity*1.12
	return chart.SVG(p, width, height)
}

// markOrders draws a tick above the capacity line for every order: shrinks in
// the upper row, grants in the lower.
func markOrders(p *plot.Plot, run *phaseRun, capacity float64) error {
	for _, e := range run.Events {
		at := e.at().Sub(run.Start).Seconds()
		if e.Kind != "order" || at > run.End.Sub(run.Start).Seconds() {
			continue
		}
		low, c := 1.01, phaseColors[Lull]
		if e.Shrink {
			low, c = 1.055, chart.Ink
		}
		if err := chart.Line(p, "", plotter.XYs{{X: at, Y: capacity * low}, {X: at, Y: capacity * (low + 0.04)}}, c, 0.8); err != nil {
			return err
		}
	}
	return nil
}

// memoryCurves are the stacked outlines over time: nothing, engine, engine +
// floor, engine + trainer.
func memoryCurves(run *phaseRun) (zero, engine, floor, all plotter.XYs) {
	column := run.End.Sub(run.Start) / plotColumns
	if column <= 0 {
		return nil, nil, nil, nil
	}
	var best auditSample
	add := func(s auditSample) {
		x := s.At.Sub(run.Start).Seconds()
		zero = append(zero, plotter.XY{X: x})
		engine = append(engine, plotter.XY{X: x, Y: inMiB(s.Engine)})
		floor = append(floor, plotter.XY{X: x, Y: inMiB(s.Engine + min(s.Trainer, run.Device.floorAt(s.At)))})
		all = append(all, plotter.XY{X: x, Y: inMiB(s.total())})
	}
	current := time.Duration(-1)
	for _, s := range run.Verdict.Samples {
		at := s.At.Sub(run.Start)
		if at < 0 || s.At.After(run.End) {
			continue
		}
		switch c := at / column; {
		case c != current && current >= 0:
			add(best)
			fallthrough
		case current < 0:
			current, best = c, s
		case s.total() > best.total():
			best = s
		}
	}
	if current >= 0 {
		add(best)
	}
	return zero, engine, floor, all
}

// plotCurve draws training speed against the memory budget, measured alone.
func plotCurve(curve []trainLine, width, height float64) (template.HTML, error) {
	p := chart.New("activation budget, MiB", "samples/s")
	var xys plotter.XYs
	top := 0.0
	for _, c := range curve {
		xys = append(xys, plotter.XY{X: float64(c.Budget) / float64(size.MiB), Y: c.Rate})
		top = max(top, c.Rate)
	}
	if err := chart.Line(p, "", xys, phaseColors[Lull], 1.8); err != nil {
		return "", err
	}
	if len(xys) > 0 {
		dots, err := plotter.NewScatter(xys)
		if err != nil {
			return "", err
		}
		dots.Color, dots.Radius = phaseColors[Lull], 3
		p.Add(dots)
	}
	p.X.Min, p.Y.Min, p.Y.Max = 0, 0, max(1, top*1.15)
	return chart.SVG(p, width, height)
}
