package calibrate

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lull-project/lull/config"
)

// Print writes the table, the fit with its spread, and the objectives.
func (r Result) Print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, model %s (%s): %d requests one at a time after %d of warm-up, seed %d\n\n",
		r.Config.Upstream, r.Config.Model, r.Load.Kind, r.TTFT.N, r.Config.WarmUp, r.Config.Seed)
	r.table(&b)
	fmt.Fprintf(&b, "\nTTFT  %s + %s a prompt token: Theil-Sen fit of %d requests; off by %s (P50), %s (P90); spread %s\n",
		millis(r.TTFT.Base), micros(r.TTFT.PerToken), r.TTFT.N, millis(r.TTFT.P50), millis(r.TTFT.P90), percent(r.TTFT.Spread))
	fmt.Fprintf(&b, "gap   %s: mean of %d gaps in %d answers; P50 %s, P99 %s, max %s; spread %s\n",
		millis(r.Gap.Mean), r.Gap.N, r.Gap.Answers, millis(r.Gap.P50), millis(r.Gap.P99), millis(r.Gap.Max), percent(r.Gap.Spread))
	fmt.Fprintf(&b, "spread: nine of ten requests stay within so much of the fit (TTFT) or of the mean (their own mean gap); at most %s is written\n", percent(r.Config.MaxSpread))
	b.WriteString(r.loadLine())
	if r.Plain {
		b.WriteString("answers: the server refuses ignore_eos; they may be shorter than asked\n")
	}
	o := r.Objective()
	fmt.Fprintf(&b, "\nobjectives at %v times that:\n\nslo:\n  ttft: %s\n  ttft_per_token: %s\n  ttft_factor: %v\n  tbt: %s\n",
		r.Config.Factor, config.DurationText(o.TTFT), config.DurationText(o.TTFTPerToken), o.TTFTFactor, config.DurationText(o.TBT))
	_, err := io.WriteString(w, b.String())
	return err
}

func (r Result) table(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "prompt\tanswer\tn\tTTFT P50\tleast\tmost\tgaps\tmean gap\tgap P99\tend to end P50\t")
	fmt.Fprintln(t, "tokens\ttokens\t\tms\tms\tms\t\tms\tms\tms\t")
	for _, x := range r.Rows {
		fmt.Fprintf(t, "%d\t%d\t%d\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t\n", x.PromptTokens, x.OutputTokens, x.N,
			bare(x.TTFT), bare(x.TTFTLeast), bare(x.TTFTMost), x.Gaps, bare(x.GapMean), bare(x.GapP99), bare(x.E2E))
	}
	_ = t.Flush() // a strings.Builder takes everything
}

// loadLine says what is known of other requests.
func (r Result) loadLine() string {
	switch {
	case !r.Load.Known:
		return "load: this kind of server does not say what it runs; only the spread speaks for its being idle\n"
	case r.Load.Others > 0:
		return fmt.Sprintf("load: up to %d other requests in %d looks at the server's own count\n", r.Load.Others, r.Load.Looks)
	}
	return fmt.Sprintf("load: no other request in %d looks at the server's own count\n", r.Load.Looks)
}

// bare is milliseconds without the unit.
func bare(d time.Duration) string {
	return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', 2, 64)
}

func millis(d time.Duration) string { return bare(d) + " ms" }

func micros(d time.Duration) string {
	return strconv.FormatFloat(float64(d)/float64(time.Microsecond), 'f', 2, 64) + " us"
}

func percent(share float64) string { return strconv.FormatFloat(share*100, 'f', 1, 64) + " %" }
