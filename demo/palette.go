package demo

import (
	"image/color"

	"github.com/lull-project/lull/chart"
)

var phaseColors = map[string]color.Color{
	InferenceOnly: chart.Grey,
	Static75:      chart.Orange,
	Static50:      chart.Red,
	Naive:         chart.Pink,
	Lull:          chart.Blue,
	Neither:       chart.Red,
	PaceOnly:      chart.Orange,
	YieldOnly:     chart.Green,
}

// The report's legend of the memory plots repeats these colours.
var (
	engineColor = color.RGBA{R: 0x8f, G: 0xc3, B: 0xe6, A: 0xff}
	floorColor  = color.RGBA{R: 0xd9, G: 0x8c, B: 0x3f, A: 0xff}
	trainColor  = color.RGBA{R: 0xf6, G: 0xcf, B: 0x8e, A: 0xff}
)
