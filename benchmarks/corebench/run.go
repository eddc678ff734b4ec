package corebench

import (
	"context"
	"fmt"
	"io"
)

// Run times the steps, then the idle sidecar, prints a table to w and writes the
// JSON file that the config names. A bar that is missed is a result and not an
// error.
func Run(ctx context.Context, w io.Writer, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	fmt.Fprintf(w, "bench core: %d steps of each kind with %d live requests, then an idle sidecar for %v\n",
		cfg.Rounds, cfg.Requests, cfg.Settle+cfg.Window)
	took, err := timeSteps(ctx, cfg.Requests, cfg.Rounds)
	if err != nil {
		return err
	}
	share, err := idleCost(ctx, cfg)
	if err != nil {
		return err
	}
	r := newResult(cfg, took, share)
	if err := r.table(w); err != nil {
		return err
	}
	return r.save(w, cfg.Out)
}
