package demo

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// printTable prints the figures of all phases and the bars.
func printTable(out io.Writer, s Summary) {
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "phase\trequests\terrors\tTTFT ok\tTTFT p50\tp99\tmax ms\tTBT ok\tTBT p99\tmax ms\tsamples/s\tgranted MiB\theld MiB\tloss\t")
	for _, p := range s.Phases {
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%.0f\t%.0f\t%.0f\t%s\t%.0f\t%.0f\t%.1f\t%.0f\t%.0f\t%s\t\n",
			p.Name, p.Requests, p.Errors, percent(p.TTFTAttainment), p.TTFTMS.P50, p.TTFTMS.P99, p.TTFTMS.Max,
			percent(p.TBTAttainment), p.TBTMS.P99, p.TBTMS.Max, p.TrainSamplesPerS, p.TrainBytesMean/(1<<20), p.TrainHeldBytesMean/(1<<20), lossRange(p))
	}
	_ = w.Flush() // the terminal is gone: nobody to tell
	for _, m := range s.NotMeasured {
		fmt.Fprintf(out, "not measured: phase %s: %s\n", m.Name, m.Why)
	}
	h := s.Handover
	fmt.Fprintf(out, "\nhandover (Lull): %d shrinks, %d freed memory (mean %.0f MiB) in mean %.2f, p50 %.2f, p99 %.2f, max %.2f ms; naive: mean %.0f ms (to the end of the batch %.0f ms)\n",
		h.Shrinks, h.ShrinksFreed, h.BytesMean/(1<<20), h.MeanMS, h.P50MS, h.P99MS, h.MaxMS, h.NaiveMicrobatchMeanMS, h.NaiveBatchMeanMS)
	a := s.Audit
	fmt.Fprintf(out, "audit: %d samples counted (at least %.0f/s), %d discarded, %d unreadable, largest %.0f of %.0f MiB, %d violations\n\n",
		a.Samples, a.SamplesPerS, a.Discarded, a.Lost, float64(a.MaxDeviceBytes)/(1<<20), float64(s.DeviceBytes)/(1<<20), a.Violations)
	for _, b := range s.Bars {
		fmt.Fprintln(out, b)
	}
	fmt.Fprintln(out)
}

// String is the bar's line in the final table.
func (b Bar) String() string {
	switch {
	case b.Skipped != "":
		return fmt.Sprintf("  n/a     %s: phase %s was not measured", b.Name, b.Skipped)
	case b.Met:
		return fmt.Sprintf("  met     %s: %s (want %s)", b.Name, b.Got, b.Want)
	}
	return fmt.Sprintf("  MISSED  %s: %s (want %s), short by %s", b.Name, b.Got, b.Want, b.Short)
}

func lossRange(p PhaseSummary) string {
	if p.LossFirst == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f → %.2f", p.LossFirst, p.LossLast)
}
