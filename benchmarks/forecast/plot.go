package forecast

import (
	"fmt"
	"image/color"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/plot/plotter"

	"github.com/lull-project/lull/chart"
	"github.com/lull-project/lull/size"
)

// plotFor is the stretch that a plot shows: in a minute and a half single bursts can
// be seen.
const plotFor = 90 * time.Second

// strip is what one horizon's plot shows, in MiB over seconds: what came, and each
// method's P95.
type strip struct {
	came plotter.XYs
	by95 []plotter.XYs
}

// keep adds one decision.
func (s *strip) keep(at time.Duration, came float64, by95 []float64) {
	point := func(bytes float64) plotter.XY { return plotter.XY{X: at.Seconds(), Y: bytes / float64(size.MiB)} }
	s.came = append(s.came, point(came))
	if s.by95 == nil {
		s.by95 = make([]plotter.XYs, len(by95))
	}
	for k, q := range by95 {
		s.by95[k] = append(s.by95[k], point(q))
	}
}

// savePlots draws one picture a horizon, Lull beside its best baseline there:
// STEM-HORIZON.svg.
func (p *play) savePlots(w io.Writer, r Result) error {
	if p.cfg.Plot == "" {
		return nil
	}
	if len(p.strips) == 0 || len(p.strips[0].came) == 0 {
		return fmt.Errorf("forecast: plot: got nothing from %v on, want less than the trace's %v", p.cfg.PlotFrom, time.Duration(r.Seconds*float64(time.Second)).Round(time.Second))
	}
	stem := strings.TrimSuffix(p.cfg.Plot, filepath.Ext(p.cfg.Plot))
	if err := os.MkdirAll(filepath.Dir(stem), 0o755); err != nil {
		return fmt.Errorf("forecast: write plot: %w", err)
	}
	for i, s := range p.strips {
		best := slices.Index(p.arenas[i].names, r.Horizons[i].Best)
		c := chart.New("seconds of "+r.Trace, "MiB, largest within "+p.cfg.Horizons[i].String())
		for _, curve := range []struct {
			name  string
			xys   plotter.XYs
			color color.Color
			width float64
		}{
			{"what came", s.came, chart.Grey, 1.2},
			{"P95, " + r.Horizons[i].Best, s.by95[best], chart.Orange, 1.2},
			{"P95, Lull", s.by95[0], chart.Blue, 1.4},
		} {
			if err := chart.Line(c, curve.name, curve.xys, curve.color, curve.width); err != nil {
				return fmt.Errorf("forecast: %w", err)
			}
		}
		c.Y.Min = 0
		c.Y.Max *= 1.25 // room for the legend
		svg, err := chart.SVG(c, 720, 260)
		if err != nil {
			return fmt.Errorf("forecast: %w", err)
		}
		file := fmt.Sprintf("%s-%v.svg", stem, p.cfg.Horizons[i])
		if err := os.WriteFile(file, []byte(chart.OnWhite(svg)), 0o644); err != nil {
			return fmt.Errorf("forecast: write plot: %w", err)
		}
		fmt.Fprintln(w, "wrote", file)
	}
	return nil
}
