package demo

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// ErrNotMeasured is wrapped by Run's error when the report lacks phases that were
// asked for.
var ErrNotMeasured = errors.New("not measured")

// MissingPhase is a phase that was asked for and could not be measured.
type MissingPhase struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// runPhases runs the phases one after the other. One that fails is no reason to lose
// the others: it is missing, with the reason. Only the end of ctx stops them all.
func (r *runner) runPhases(ctx context.Context, one func(context.Context, Phase) (*phaseRun, error)) (runs []*phaseRun, missing []MissingPhase, err error) {
	for i, p := range selectPhases(r.opts.Study, r.opts.Phases) {
		fmt.Fprintf(r.out, "\nphase %d: %s\n", i+1, p.Title)
		run, err := one(ctx, p)
		switch {
		case ctx.Err() != nil:
			return nil, nil, fmt.Errorf("demo: phase %s: %w", p.Name, ctx.Err())
		case err != nil:
			fmt.Fprintf(r.out, "phase %s: not measured: %v\n", p.Name, err)
			missing = append(missing, MissingPhase{Name: p.Name, Why: err.Error()})
		default:
			runs = append(runs, run)
		}
	}
	return runs, missing, nil
}

// complete is an error that names the phases that the report lacks, nil when it
// lacks none.
func (s Summary) complete(out string) error {
	if len(s.NotMeasured) == 0 {
		return nil
	}
	var names []string
	for _, m := range s.NotMeasured {
		names = append(names, m.Name)
	}
	return fmt.Errorf("demo: phase %s: %w; the rest is in %s, with the reason", strings.Join(names, ", "), ErrNotMeasured, filepath.Join(out, "report.html"))
}
