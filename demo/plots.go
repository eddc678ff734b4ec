package demo

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"regexp"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Colours are those of Okabe and Ito, which colour-blind readers can tell apart.
var phaseColors = map[string]color.Color{
	InferenceOnly: color.RGBA{R: 0x55, G: 0x5b, B: 0x66, A: 0xff},
	Static75:      color.RGBA{R: 0xe6, G: 0x9f, B: 0x00, A: 0xff},
	Static50:      color.RGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff},
	Naive:         color.RGBA{R: 0xcc, G: 0x79, B: 0xa7, A: 0xff},
	Lull:          color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff},
	Neither:       color.RGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff},
	PaceOnly:      color.RGBA{R: 0xe6, G: 0x9f, B: 0x00, A: 0xff},
	YieldOnly:     color.RGBA{R: 0x00, G: 0x9e, B: 0x73, A: 0xff},
}

// The report's legend of the memory plots repeats these colours.
var (
	inkColor    = color.RGBA{R: 0x1f, G: 0x24, B: 0x2e, A: 0xff}
	faintColor  = color.RGBA{R: 0xe3, G: 0xe6, B: 0xea, A: 0xff}
	limitColor  = color.RGBA{R: 0xb9, G: 0x1c, B: 0x1c, A: 0xff}
	engineColor = color.RGBA{R: 0x8f, G: 0xc3, B: 0xe6, A: 0xff}
	floorColor  = color.RGBA{R: 0xd9, G: 0x8c, B: 0x3f, A: 0xff}
	trainColor  = color.RGBA{R: 0xf6, G: 0xcf, B: 0x8e, A: 0xff}
)

// newPlot is a plot in the report's style.
func newPlot(x, y string) *plot.Plot {
	p := plot.New()
	sans := font.Font{Typeface: "Liberation", Variant: "Sans", Size: 11}
	for _, style := range []*draw.TextStyle{
		&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle,
		&p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle,
	} {
		style.Font = sans
		style.Color = inkColor
	}
	p.BackgroundColor = color.Transparent
	p.X.Label.Text, p.Y.Label.Text = x, y
	p.X.LineStyle.Color, p.Y.LineStyle.Color = inkColor, inkColor
	p.X.LineStyle.Width, p.Y.LineStyle.Width = 0.7, 0.7
	p.X.Tick.LineStyle.Width, p.Y.Tick.LineStyle.Width = 0.7, 0.7
	p.X.Tick.Marker, p.Y.Tick.Marker = roundTicks{}, roundTicks{}
	p.X.Padding, p.Y.Padding = 4, 4
	p.Legend.Top = true
	p.Legend.Padding = 3
	p.Legend.ThumbnailWidth = 18
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = faintColor, faintColor
	grid.Vertical.Dashes, grid.Horizontal.Dashes = nil, nil
	p.Add(grid)
	return p
}

// line adds a curve, with a legend entry when name is not empty.
func line(p *plot.Plot, name string, xys plotter.XYs, c color.Color, width float64, dashes ...vg.Length) error {
	if len(xys) == 0 {
		return nil
	}
	l, err := plotter.NewLine(xys)
	if err != nil {
		return fmt.Errorf("plot %s: %w", name, err)
	}
	l.Color, l.Width, l.Dashes = c, vg.Points(width), dashes
	p.Add(l)
	if name != "" {
		p.Legend.Add(name, l)
	}
	return nil
}

// band adds the area between two curves over the same x.
func band(p *plot.Plot, name string, low, high plotter.XYs, c color.Color) error {
	if len(low) == 0 {
		return nil
	}
	ring := make(plotter.XYs, 0, 2*len(low))
	ring = append(ring, high...)
	for i := range low {
		ring = append(ring, low[len(low)-1-i])
	}
	poly, err := plotter.NewPolygon(ring)
	if err != nil {
		return fmt.Errorf("plot %s: %w", name, err)
	}
	poly.Color = c
	poly.LineStyle.Width = 0
	p.Add(poly)
	if name != "" {
		p.Legend.Add(name, poly)
	}
	return nil
}

// vertical is a line at x from the bottom to top.
func vertical(x, top float64) plotter.XYs { return plotter.XYs{{X: x, Y: 0}, {X: x, Y: top}} }

var (
	svgHead   = regexp.MustCompile(`(?s)^.*?<svg [^>]*>`)
	svgFamily = regexp.MustCompile(`font-family:[^;]*;font-variant:[^;]*;`)
)

// svg draws a plot as an inline SVG that scales to its column. Text uses the
// reader's own sans-serif, so that the report needs no font.
func svg(p *plot.Plot, width, height float64) (template.HTML, error) {
	c := vgsvg.NewWith(vgsvg.UseWH(vg.Points(width), vg.Points(height)))
	p.Draw(draw.New(c))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", fmt.Errorf("plot: %w", err)
	}
	head := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" role="img">`, width, height)
	text := svgHead.ReplaceAllString(b.String(), head)
	text = svgFamily.ReplaceAllString(text, "font-family:Liberation Sans,Arial,Helvetica,sans-serif;")
	return template.HTML(text), nil //nolint:gosec // drawn here, from numbers and fixed labels
}
