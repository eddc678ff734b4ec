package chart

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

// Colours that charts share; Ink is that of text and axes, Limit that of a bound.
var (
	Ink   = color.RGBA{R: 0x1f, G: 0x24, B: 0x2e, A: 0xff}
	Limit = color.RGBA{R: 0xb9, G: 0x1c, B: 0x1c, A: 0xff}
	faint = color.RGBA{R: 0xe3, G: 0xe6, B: 0xea, A: 0xff}
)

// Series colours are those of Okabe and Ito, which colour-blind readers can tell
// apart.
var (
	Grey   = color.RGBA{R: 0x55, G: 0x5b, B: 0x66, A: 0xff}
	Orange = color.RGBA{R: 0xe6, G: 0x9f, B: 0x00, A: 0xff}
	Red    = color.RGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff}
	Pink   = color.RGBA{R: 0xcc, G: 0x79, B: 0xa7, A: 0xff}
	Blue   = color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff}
	Green  = color.RGBA{R: 0x00, G: 0x9e, B: 0x73, A: 0xff}
)

// New is a plot in Lull's style, with the names of its axes.
func New(x, y string) *plot.Plot {
	p := plot.New()
	sans := font.Font{Typeface: "Liberation", Variant: "Sans", Size: 11}
	for _, style := range []*draw.TextStyle{
		&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle,
		&p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle,
	} {
		style.Font = sans
		style.Color = Ink
	}
	p.BackgroundColor = nil // the page's own shows
	p.X.Label.Text, p.Y.Label.Text = x, y
	p.X.LineStyle.Color, p.Y.LineStyle.Color = Ink, Ink
	p.X.LineStyle.Width, p.Y.LineStyle.Width = 0.7, 0.7
	p.X.Tick.LineStyle.Width, p.Y.Tick.LineStyle.Width = 0.7, 0.7
	p.X.Tick.Marker, p.Y.Tick.Marker = roundTicks{}, roundTicks{}
	p.X.Padding, p.Y.Padding = 4, 4
	p.Legend.Top = true
	p.Legend.Padding = 3
	p.Legend.ThumbnailWidth = 18
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = faint, faint
	grid.Vertical.Dashes, grid.Horizontal.Dashes = nil, nil
	p.Add(grid)
	return p
}

// Line adds a curve, with a legend entry when name is not empty.
func Line(p *plot.Plot, name string, xys plotter.XYs, c color.Color, width float64, dashes ...vg.Length) error {
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

// Band adds the area between two curves over the same x.
func Band(p *plot.Plot, name string, low, high plotter.XYs, c color.Color) error {
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

// Vertical is a line at x from the bottom to top.
func Vertical(x, top float64) plotter.XYs { return plotter.XYs{{X: x, Y: 0}, {X: x, Y: top}} }

var (
	svgHead   = regexp.MustCompile(`(?s)^.*?<svg [^>]*>`)
	svgFamily = regexp.MustCompile(`font-family:[^;]*;font-variant:[^;]*;`)
)

// SVG draws a plot as an inline SVG that scales to its column. Text uses the
// reader's own sans-serif, so that the report needs no font.
func SVG(p *plot.Plot, width, height float64) (template.HTML, error) {
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

// OnWhite is a picture for a page that may be dark: axes and text are dark ink.
func OnWhite(svg template.HTML) template.HTML {
	head := svgHead.FindString(string(svg))
	return template.HTML(head) + `<rect width="100%" height="100%" fill="#fff"/>` + svg[len(head):] //nolint:gosec // likewise
}
