package calibrate

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/slo"
)

// Result is what a calibration found.
type Result struct {
	Config Config
	Load   Load
	// Plain says that the server refused ignore_eos, so that answers may be shorter
	// than asked.
	Plain bool
	Rows  []Row
	TTFT  slo.Fit
	Gap   Gap
}

// Row is one prompt length with one answer length.
type Row struct {
	PromptTokens, OutputTokens int // medians of the server's own counts
	N                          int
	TTFT, TTFTLeast, TTFTMost  time.Duration // median, least, most
	Gaps                       int
	GapMean, GapP99            time.Duration
	E2E                        time.Duration // median
}

// Gap is what was found of the gaps between chunks with content.
type Gap struct {
	// N gaps in Answers answers.
	N, Answers          int
	Mean, P50, P99, Max time.Duration
	// Spread is how far nine of ten answers' own mean gaps stay from Mean, as a part
	// of it.
	Spread float64
}

// summarise turns measurements into a result.
func summarise(cfg Config, all []Measured) (Result, error) {
	r := Result{Config: cfg}
	for _, c := range cfg.cells() {
		r.Rows = append(r.Rows, row(c, all))
	}
	points := make([]slo.Point, len(all))
	for i, m := range all {
		points[i] = slo.Point{Tokens: m.PromptTokens, TTFT: m.TTFT}
	}
	fit, err := slo.FitTTFT(points)
	if err != nil {
		return Result{}, fmt.Errorf("calibrate: %w: the server counted the same tokens for every prompt; nothing is written", err)
	}
	r.TTFT, r.Gap = fit, gapOf(all)
	return r, nil
}

func row(c cell, all []Measured) Row {
	var prompt, output []int64
	var ttft, e2e, gaps []time.Duration
	for _, m := range all {
		if m.Words == c.words && m.Answer == c.answer {
			prompt, output = append(prompt, int64(m.PromptTokens)), append(output, int64(m.OutputTokens))
			ttft, e2e, gaps = append(ttft, m.TTFT), append(e2e, m.E2E), append(gaps, m.Gaps...)
		}
	}
	return Row{
		PromptTokens: int(slo.Quantile(prompt, 0.5)), OutputTokens: int(slo.Quantile(output, 0.5)), N: len(ttft),
		TTFT: slo.Quantile(ttft, 0.5), TTFTLeast: slo.Quantile(ttft, 0), TTFTMost: slo.Quantile(ttft, 1),
		GapMean: slo.Mean(gaps), GapP99: slo.Quantile(gaps, 0.99), E2E: slo.Quantile(e2e, 0.5), Gaps: len(gaps),
	}
}

func gapOf(all []Measured) Gap {
	var gaps, means []time.Duration
	for _, m := range all {
		if len(m.Gaps) > 0 {
			gaps, means = append(gaps, m.Gaps...), append(means, slo.Mean(m.Gaps))
		}
	}
	g := Gap{N: len(gaps), Answers: len(means), Mean: slo.Mean(gaps), P50: slo.Quantile(gaps, 0.5), P99: slo.Quantile(gaps, 0.99)}
	if len(gaps) > 0 {
		g.Max = slices.Max(gaps)
	}
	g.Spread = slo.Spread(means, g.Mean)
	return g
}

// leastBase keeps a limit for a prompt of unknown length, where a fit goes
// through the origin.
const leastBase = 100 * time.Microsecond

// Objective is Factor times what was measured, as a config file has it.
func (r Result) Objective() config.Limits {
	return config.Limits{
		TTFT:         max(r.TTFT.Base.Round(10*time.Microsecond), leastBase),
		TTFTPerToken: r.TTFT.PerToken.Round(10 * time.Nanosecond),
		TTFTFactor:   r.Config.Factor,
		TBT:          time.Duration(float64(r.Gap.Mean) * r.Config.Factor).Round(10 * time.Microsecond),
	}
}

// mostBearable is the largest spread that advice offers to take: objectives are
// some times the fit, and that of a server which is off by as much again means
// little.
const mostBearable = 1

// quiet makes a steady server of most.
const quiet = "end what else computes on the server's machine and run it again"

// advice is what mends the first of the refusals.
func (r Result) advice() string {
	worst := max(r.TTFT.Spread, r.Gap.Spread)
	switch {
	case r.Load.Others > 0:
		return "wait until the server has no other request and run it again"
	case worst > max(r.Config.MaxSpread, mostBearable):
		return quiet
	case worst > r.Config.MaxSpread:
		const step = 20 // of a twentieth
		return fmt.Sprintf("%s, or take it as it is with --max-spread %.2f", quiet, math.Ceil(worst*step)/step)
	}
	return "ask for longer answers (--answers)"
}

// Refusals are the rules by which nothing should be written; none means that
// the server was idle and steady.
func (r Result) Refusals() []string {
	var out []string
	if n := r.Load.Others; n > 0 {
		out = append(out, fmt.Sprintf("loaded: the server had up to %d requests running or waiting beside ours, want 0", n))
	}
	for _, s := range []struct {
		what   string
		spread float64
	}{{"ttft: nine of ten runs stay within %s of the fit", r.TTFT.Spread}, {"gaps: nine of ten answers stay within %s of the mean", r.Gap.Spread}} {
		if s.spread > r.Config.MaxSpread {
			out = append(out, "noisy "+fmt.Sprintf(s.what, percent(s.spread))+", want "+percent(r.Config.MaxSpread)+" (--max-spread)")
		}
	}
	if r.Gap.Mean <= 0 {
		out = append(out, "no gap: every answer came at once, so there is nothing to promise on gaps")
	}
	return out
}
