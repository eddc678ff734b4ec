// Package chart draws the plots of reports and benchmarks in one style: inline
// SVG with the reader's own sans-serif, colours that colour-blind readers can
// tell apart, axes with a few round values.
//
// It knows nothing of what it draws, measures nothing and trims nothing.
//
//	svg, err := chart.CDF{X: "ms", Least: 0.2, List: list}.SVG(480, 300)
//	p := chart.New("seconds", "MiB")
//	err = chart.Line(p, "budget", points, chart.Blue, 1.6)
//
// Concurrency: functions share nothing; a plot belongs to one goroutine.
package chart
