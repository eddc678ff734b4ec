package chart

import (
	"html/template"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
)

// Distribution is one curve of a CDF; its values have the unit of the axis and
// need no order.
type Distribution struct {
	Title  string
	Color  color.Color
	Values []float64
}

// CDF is a chart of empirical distributions over a logarithmic axis. Nothing is
// trimmed.
type CDF struct {
	X    string // the axis' name, with its unit
	List []Distribution
	// Least is where the axis begins at the earliest; what is less is drawn there. It
	// must be above 0.
	Least float64
	// Limit is marked by a vertical line of that name; 0 marks none.
	Limit     float64
	LimitName string
}

// mostPoints bounds a curve; its ends are always drawn.
const mostPoints = 600

// SVG draws it, in points.
func (c CDF) SVG(width, height float64) (template.HTML, error) {
	p := New(c.X, "fraction")
	lowest, highest := 0.0, 0.0
	for _, d := range c.List {
		xys := c.curve(d.Values)
		if len(xys) == 0 {
			continue
		}
		if lowest == 0 || xys[0].X < lowest {
			lowest = xys[0].X
		}
		highest = max(highest, xys[len(xys)-1].X)
		if err := Line(p, d.Title, xys, d.Color, 1.6); err != nil {
			return "", err
		}
	}
	if lowest == 0 {
		lowest, highest = 1, 10
	}
	if c.Limit > 0 {
		if err := Line(p, c.LimitName, Vertical(c.Limit, 1), Limit, 1.2); err != nil {
			return "", err
		}
		lowest, highest = min(lowest, c.Limit), max(highest, c.Limit)
	}
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, LogTicks{}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = lowest*0.9, highest*1.15, 0, 1.001
	p.Legend.Left = true // a distribution is low on the left
	return SVG(p, width, height)
}

// curve is the empirical distribution at about mostPoints of its values: the
// largest is always among them.
func (c CDF) curve(values []float64) plotter.XYs {
	s := slices.Sorted(slices.Values(values))
	stride := max(1, len(s)/mostPoints)
	var xys plotter.XYs
	for i := 0; i < len(s); i += stride {
		xys = append(xys, plotter.XY{X: max(s[i], c.Least), Y: float64(i+1) / float64(len(s))})
	}
	if n := len(s); n > 0 {
		xys = append(xys, plotter.XY{X: max(s[n-1], c.Least), Y: 1})
	}
	return xys
}
