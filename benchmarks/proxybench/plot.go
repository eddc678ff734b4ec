package proxybench

import (
	"fmt"
	"image/color"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lull-project/lull/chart"
)

// armColors are the curves' colours, in the order of armNames.
var armColors = []color.Color{chart.Grey, chart.Orange, chart.Blue}

// savePlots draws the distributions of the run of three arms beside the JSON file:
// NAME-first.svg and NAME-later.svg, untrimmed, over a logarithmic axis.
func savePlots(w io.Writer, file string, samples map[string]*arm) error {
	if file == "" {
		return nil
	}
	stem := strings.TrimSuffix(file, filepath.Ext(file))
	for _, plot := range []struct {
		name, axis string
		of         func(*arm) []time.Duration
	}{
		{"first", "first event, µs", func(a *arm) []time.Duration { return a.first }},
		{"later", "later events, µs", func(a *arm) []time.Duration { return a.later }},
	} {
		c := chart.CDF{X: plot.axis, Least: 1}
		for i, arm := range armNames {
			d := chart.Distribution{Title: arm, Color: armColors[i]}
			for _, v := range plot.of(samples[arm]) {
				d.Values = append(d.Values, float64(v)/float64(time.Microsecond))
			}
			c.List = append(c.List, d)
		}
		svg, err := c.SVG(480, 300)
		if err != nil {
			return fmt.Errorf("bench proxy: %w", err)
		}
		path := stem + "-" + plot.name + ".svg"
		if err := os.WriteFile(path, []byte(chart.OnWhite(svg)), 0o644); err != nil {
			return fmt.Errorf("bench proxy: write plot: %w", err)
		}
		fmt.Fprintln(w, "wrote", path)
	}
	return nil
}
