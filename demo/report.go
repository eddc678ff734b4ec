package demo

import (
	_ "embed" // for the template
	"fmt"
	"html/template"
	"io"
	"os"
	"time"

	"github.com/lull-project/lull/size"
)

//go:embed report.html.tmpl
var reportTemplate string

// reportView is what the template shows.
type reportView struct {
	Summary Summary
	Titles  map[string]string
	Sizing  Sizing
	Seconds float64
	WarmUp  float64 // seconds
	Made    string
	Floor   size.Bytes
	Device  size.Bytes
	Missed  int
	Real    bool // a real vLLM, not the emulator
	// Plots; empty ones are left out of the page.
	Memory                                     template.HTML
	Others                                     []memoryPlot
	TTFT, TBT, Handovers, Samples, Loss, Curve template.HTML
	CurveRange                                 string
	Objective                                  Objectives
}

type memoryPlot struct {
	Title, Note string
	SVG         template.HTML
}

// writeReport writes the self-contained report.html.
func (r *runner) writeReport(path string, s Summary, runs []*phaseRun, slo Objectives) (err error) {
	view, err := r.reportView(s, runs, slo)
	if err != nil {
		return fmt.Errorf("demo: report: %w", err)
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("demo: report: %w", err)
	}
	defer func() {
		if cerr := f.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("demo: report: %w", cerr)
		}
	}()
	return renderReport(f, view)
}

func renderReport(w io.Writer, view reportView) error {
	t, err := template.New("report").Funcs(template.FuncMap{
		"pct":   percent,
		"mib":   mib,
		"mibOf": func(n int64) string { return mib(float64(n)) },
		"dev":   func(b size.Bytes) string { return mib(float64(b)) },
		"kib":   func(b size.Bytes) string { return fmt.Sprintf("%.0f KiB", float64(b)/1024) },
		"ms":    func(d time.Duration) string { return fmt.Sprintf("%.1f ms", ms(d)) },
		"num":   func(v float64) string { return fmt.Sprintf("%.1f", v) },
		"num0":  func(v float64) string { return fmt.Sprintf("%.0f", v) },
		"num2":  func(v float64) string { return fmt.Sprintf("%.2f", v) },
		"loss":  lossRange,
		"cols":  func(seconds float64) float64 { return seconds * 1000 / plotColumns },
	}).Parse(reportTemplate)
	if err != nil {
		return fmt.Errorf("demo: report: %w", err)
	}
	if err := t.Execute(w, view); err != nil {
		return fmt.Errorf("demo: report: %w", err)
	}
	return nil
}

func (r *runner) reportView(s Summary, runs []*phaseRun, slo Objectives) (reportView, error) {
	v := reportView{
		Summary: s, Titles: map[string]string{}, Sizing: r.sizing, Seconds: r.opts.Window.Seconds(),
		Real: r.opts.Engine == EngineVLLM,
		Made: r.epoch.UTC().Format(time.DateOnly), Floor: r.floor, Device: r.capacity, CurveRange: curveRange(r.curve), Objective: slo, WarmUp: warmUp.Seconds(),
	}
	for _, b := range s.Bars {
		if b.Skipped == "" && !b.Met {
			v.Missed++
		}
	}
	for _, p := range StudyPhases(s.Study) {
		v.Titles[p.Name] = p.Title
	}
	var err error
	draw := func(dst *template.HTML, plot func() (template.HTML, error)) {
		if err == nil {
			*dst, err = plot()
		}
	}
	for _, run := range runs {
		if run.Phase.Name == Lull {
			draw(&v.Memory, func() (template.HTML, error) { return plotMemory(run, 900, 320) })
			continue
		}
		var m template.HTML
		draw(&m, func() (template.HTML, error) { return plotMemory(run, 440, 190) })
		v.Others = append(v.Others, memoryPlot{Title: run.Phase.Title, Note: memoryNote(run.Phase, v.Real), SVG: m})
	}
	if len(runs) == 0 {
		return v, nil
	}
	draw(&v.TTFT, func() (template.HTML, error) { return plotCDF("TTFT, ms", ttftSeries(runs), slo.TTFT, 440, 300) })
	draw(&v.TBT, func() (template.HTML, error) { return plotCDF("TBT, ms", tbtSeries(runs), slo.TBT, 440, 300) })
	if list := handoverSeries(runs); len(list) > 0 {
		draw(&v.Handovers, func() (template.HTML, error) {
			return plotCDF("decision → device confirms, ms", list, 0, 440, 300)
		})
	}
	draw(&v.Samples, func() (template.HTML, error) { return plotSamples(runs, 440, 300) })
	draw(&v.Loss, func() (template.HTML, error) { return plotLoss(runs, 440, 300) })
	if len(r.curve) > 0 {
		draw(&v.Curve, func() (template.HTML, error) { return plotCurve(r.curve, 440, 300) })
	}
	return v, err
}

// memoryNote is the caption of a small memory plot, empty for most.
func memoryNote(p Phase, real bool) string {
	if p.Trains || real {
		return ""
	}
	return "A stock server: its whole pool is mapped at the start and stays."
}

// curveRange is the measured curve in words, empty without one.
func curveRange(curve []trainLine) string {
	if len(curve) == 0 {
		return ""
	}
	low, high := curve[0], curve[0]
	for _, c := range curve {
		if c.Rate < low.Rate {
			low = c
		}
		if c.Rate > high.Rate {
			high = c
		}
	}
	return fmt.Sprintf("measured alone: %.0f samples/s with %s at the slowest, %.0f with %s at the fastest",
		low.Rate, mib(float64(low.Budget)), high.Rate, mib(float64(high.Budget)))
}
