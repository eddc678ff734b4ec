package forecast

import (
	"fmt"
	"image/color"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gonum.org/v1/plot/plotter"

	"github.com/lull-project/lull/chart"
	"github.com/lull-project/lull/size"
)

// plotFor is the stretch that a plot shows: in a minute and a half single bursts can
// be seen.
const plotFor = 90 * time.Second

// rivalDrawn is the baseline beside Lull's curve: the strongest, mostly.
const rivalDrawn = "rolling 300 s"

// strip is what one horizon's plot shows, in MiB over seconds.
type strip struct{ came, ours, rival plotter.XYs }

// keep adds one decision.
func (s *strip) keep(at time.Duration, came, ours, rival float64) {
	x := at.Seconds()
	point := func(bytes float64) plotter.XY { return plotter.XY{X: x, Y: bytes / float64(size.MiB)} }
	s.came, s.ours, s.rival = append(s.came, point(came)), append(s.ours, point(ours)), append(s.rival, point(rival))
}

// savePlots draws one picture a horizon: STEM-HORIZON.svg.
func (p *play) savePlots(w io.Writer) error {
	if p.cfg.Plot == "" {
		return nil
	}
	stem := strings.TrimSuffix(p.cfg.Plot, filepath.Ext(p.cfg.Plot))
	if err := os.MkdirAll(filepath.Dir(stem), 0o755); err != nil {
		return fmt.Errorf("forecast: write plot: %w", err)
	}
	for i, s := range p.strips {
		c := chart.New("seconds", "MiB, largest within "+p.cfg.Horizons[i].String())
		for _, curve := range []struct {
			name  string
			xys   plotter.XYs
			color color.Color
			width float64
		}{
			{"what came", s.came, chart.Grey, 1.2},
			{"P95, " + rivalDrawn, s.rival, chart.Orange, 1.2},
			{"P95, Lull", s.ours, chart.Blue, 1.4},
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
