package chart

import (
	"math"
	"strconv"

	"gonum.org/v1/plot"
)

// roundTicks ticks a linear axis at about five round values.
type roundTicks struct{}

// Ticks implements plot.Ticker.
func (roundTicks) Ticks(low, high float64) []plot.Tick {
	if high <= low {
		return nil
	}
	step := math.Pow(10, math.Floor(math.Log10((high-low)/5)))
	for _, m := range []float64{1, 2, 5, 10} {
		if (high-low)/(step*m) <= 7 {
			step *= m
			break
		}
	}
	var ticks []plot.Tick
	for i := math.Ceil(low / step); i*step <= high*1.0001; i++ {
		ticks = append(ticks, plot.Tick{Value: i * step, Label: strconv.FormatFloat(math.Round(i*step*1e6)/1e6, 'f', -1, 64)})
	}
	return ticks
}

// LogTicks ticks a logarithmic axis: the fewer decades, the more values in each.
type LogTicks struct{}

// Ticks implements plot.Ticker.
func (LogTicks) Ticks(low, high float64) []plot.Tick {
	steps := []float64{1, 2, 5}
	switch decades := math.Log10(high / low); {
	case decades < 1.3:
		steps = []float64{1, 1.5, 2, 3, 5, 7}
	case decades > 3:
		steps = []float64{1}
	}
	var ticks []plot.Tick
	for decade := math.Pow(10, math.Floor(math.Log10(low))); decade <= high; decade *= 10 {
		for _, m := range steps {
			if v := decade * m; v >= low*0.999 && v <= high*1.001 {
				ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'f', -1, 64)})
			}
		}
	}
	return ticks
}

var (
	_ plot.Ticker = roundTicks{}
	_ plot.Ticker = LogTicks{}
)
