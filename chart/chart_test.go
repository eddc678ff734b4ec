package chart

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
)

func TestTicksAreRoundAndFew(t *testing.T) {
	show := func(ticks []plot.Tick) string {
		var labels []string
		for _, tick := range ticks {
			labels = append(labels, tick.Label)
		}
		return strings.Join(labels, " ")
	}
	for want, ticks := range map[string][]plot.Tick{
		"0 5 10 15 20 25":            roundTicks{}.Ticks(0, 25),
		"0 200 400 600 800 1000":     roundTicks{}.Ticks(0, 1163),
		"2.5 3 3.5 4 4.5 5 5.5":      roundTicks{}.Ticks(2.3, 5.7),
		"0 0.2 0.4 0.6 0.8 1":        roundTicks{}.Ticks(0, 1.001),
		"30 50 70 100 150 200":       LogTicks{}.Ticks(22, 280),
		"0.2 0.5 1 2 5 10 20 50 100": LogTicks{}.Ticks(0.2, 150),
		"1 10 100 1000 10000":        LogTicks{}.Ticks(0.9, 12_000),
		"":                           roundTicks{}.Ticks(1, 1),
	} {
		if got := show(ticks); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestCurveOfADistributionHasItsEndsAndNotTooManyPoints(t *testing.T) {
	var values []float64
	for i := 10_000; i > 0; i-- { // in no order that helps
		values = append(values, float64(i))
	}
	xys := CDF{Least: 5}.curve(values)
	first, last := xys[0], xys[len(xys)-1]
	if first != (plotter.XY{X: 5, Y: 0.0001}) || last != (plotter.XY{X: 10_000, Y: 1}) || len(xys) > mostPoints+30 {
		t.Errorf("got %d points from %v to %v, want few, from the least to the largest", len(xys), first, last)
	}
	for i := 1; i < len(xys); i++ {
		if xys[i].X < xys[i-1].X || xys[i].Y < xys[i-1].Y {
			t.Fatalf("point %d: got %v after %v, want a distribution to rise", i, xys[i], xys[i-1])
		}
	}
	if got := (CDF{}).curve(nil); got != nil {
		t.Errorf("nothing: got %v, want no curve", got)
	}
}

func TestChartIsWellFormedAndScalesAndNamesItsCurves(t *testing.T) {
	list := []Distribution{{Title: "ours", Color: Blue, Values: []float64{1, 2, 300}}, {Title: "nothing", Color: Red}}
	for name, c := range map[string]CDF{
		"with a limit": {X: "us", Least: 1, List: list, Limit: 5000, LimitName: "objective"},
		"without one":  {X: "us", Least: 1, List: list},
		"empty":        {X: "us", Least: 1},
	} {
		svg, err := c.SVG(400, 300)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		text := string(svg)
		for d := xml.NewDecoder(strings.NewReader(text)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if !strings.HasPrefix(text, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 300"`) || strings.Contains(text, "NaN") {
			t.Errorf("%s: got %.120s, want a picture of that size", name, text)
		}
		if white := string(OnWhite(svg)); len(white) <= len(text) || !strings.Contains(white, `role="img"><rect width="100%" height="100%" fill="#fff"/>`) {
			t.Errorf("%s: got %.200s, want a white ground first", name, white)
		}
		if got := strings.Contains(text, ">objective<"); got != (c.Limit > 0) {
			t.Errorf("%s: objective drawn: %v", name, got)
		}
		if got := strings.Contains(text, ">ours<"); got != (len(c.List) > 0) || strings.Contains(text, ">nothing<") {
			t.Errorf("%s: got the legend wrong", name)
		}
	}
}
