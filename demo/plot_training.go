package demo

import (
	"html/template"

	"gonum.org/v1/plot/plotter"

	"github.com/lull-project/lull/chart"
)

// plotSamples draws samples trained on since the load began, by phase.
func plotSamples(runs []*phaseRun, width, height float64) (template.HTML, error) {
	return plotTraining(runs, "samples trained on", width, height, func(run *phaseRun) plotter.XYs {
		base := run.Train.samplesAt(run.Start)
		xys := plotter.XYs{{}}
		for _, s := range run.Train.between(run.Start, run.End) {
			xys = append(xys, plotter.XY{X: s.at().Sub(run.Start).Seconds(), Y: float64(s.Samples) - base})
		}
		return append(xys, plotter.XY{X: run.End.Sub(run.Start).Seconds(), Y: run.Train.samplesAt(run.End) - base})
	})
}

// plotLoss draws the loss by samples trained on, from the job's first step: the
// phases train the same job, so their curves must lie on one another.
func plotLoss(runs []*phaseRun, width, height float64) (template.HTML, error) {
	p := chart.New("samples trained on", "loss (nats per byte)")
	var lowest, highest, most float64
	for _, run := range runs {
		if run.Train == nil {
			continue
		}
		var xys plotter.XYs
		for _, s := range run.Train.steps {
			xys = append(xys, plotter.XY{X: float64(s.Samples), Y: s.Loss})
			highest, most = max(highest, s.Loss), max(most, float64(s.Samples))
			if lowest == 0 || s.Loss < lowest {
				lowest = s.Loss
			}
		}
		if err := chart.Line(p, run.Phase.Title, xys, phaseColors[run.Phase.Name], 1.6); err != nil {
			return "", err
		}
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, max(1, most), max(0, lowest-0.3), max(1, highest+0.2)
	return chart.SVG(p, width, height)
}

func plotTraining(runs []*phaseRun, y string, width, height float64, of func(*phaseRun) plotter.XYs) (template.HTML, error) {
	p := chart.New("seconds", y)
	top, seconds := 1.0, 1.0
	for _, run := range runs {
		if run.Train == nil {
			continue
		}
		xys := of(run)
		for _, xy := range xys {
			top, seconds = max(top, xy.Y), max(seconds, xy.X)
		}
		if err := chart.Line(p, run.Phase.Title, xys, phaseColors[run.Phase.Name], 1.6); err != nil {
			return "", err
		}
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, seconds, 0, top*1.1
	p.Legend.Left = true
	return chart.SVG(p, width, height)
}
