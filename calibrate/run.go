package calibrate

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/lull-project/lull/config"
)

// Run measures, prints the result on out, and writes the objectives where the
// config names a file and the server was idle and steady.
func Run(ctx context.Context, out io.Writer, cfg Config) error {
	return runWith(ctx, out, cfg, settle)
}

// runWith takes how long a server may go on counting a request that has ended.
func runWith(ctx context.Context, out io.Writer, cfg Config, settle time.Duration) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if cfg.Write != "" { // before minutes are spent on it
		if _, err := edited(cfg.Write, config.Limits{TTFT: time.Second, TTFTFactor: 1, TBT: time.Second}); err != nil {
			return err
		}
	}
	w, err := openWatch(ctx, cfg, settle)
	if err != nil {
		return err
	}
	// It may be minutes until there is more to say.
	fmt.Fprintf(out, "measuring: %d requests of warm-up, then %d one at a time\n", cfg.WarmUp, len(cfg.cells())*cfg.Runs)
	r, err := take(ctx, cfg, w)
	if err != nil {
		return err
	}
	if err := r.Print(out); err != nil {
		return fmt.Errorf("calibrate: print the result: %w; nothing is written", err)
	}
	return r.write(out)
}

// take measures and summarises; it closes w.
func take(ctx context.Context, cfg Config, w *watch) (Result, error) {
	c := newClient(cfg)
	all, err := measure(ctx, cfg, c, w)
	c.close()
	if closed := w.close(); err == nil {
		err = closed
	}
	if err != nil {
		return Result{}, err
	}
	r, err := summarise(cfg, all)
	r.Load, r.Plain = w.load, c.plain
	return r, err
}

// write puts the objectives into the config's file, unless a rule forbids it.
func (r Result) write(out io.Writer) error { return r.writeWith(out, replaceFile) }

func (r Result) writeWith(out io.Writer, replace func(path string, text []byte) error) error {
	path := r.Config.Write
	if path == "" {
		return nil
	}
	if refusals := r.Refusals(); len(refusals) > 0 {
		why := strings.Join(refusals, "; ")
		if !r.Config.Force {
			return fmt.Errorf("calibrate: write %s: %s; nothing is written: %s, or give --force", path, why, r.advice())
		}
		fmt.Fprintf(out, "\nwritten by force, although %s\n", why)
	}
	text, err := edited(path, r.Objective())
	if err != nil {
		return err
	}
	if err := replace(path, text); err != nil {
		return fmt.Errorf("calibrate: write %s: %w; the file is as it was", path, err)
	}
	fmt.Fprintf(out, "\n%s: slo.ttft, ttft_per_token, ttft_factor and tbt are set; the rest of the file is as it was\n", path)
	return nil
}
