package demo

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Options is what a caller of Run can choose.
type Options struct {
	// Out is the folder that gets report.html, events.jsonl, summary.json and the
	// logs of the child processes.
	Out string
	// Window is how long each phase sends load. Default 20 s; below it too few
	// shrinks happen for a tail.
	Window time.Duration
	// Requests caps the requests of a phase; 0 means all that arrive in Window.
	Requests int
	// Engine is the LLM server: emulator. The seam for others is engine.go.
	Engine string
	// Python is the interpreter with torch.
	Python string
	// Phases are the phases to run, in this order; empty means all.
	Phases []string
	// TrainerNice is the nice value of the training job, 0 to 19. Default 10: on a
	// quiet machine it has a core for itself anyway; where other work competes for
	// that core, a higher value starves the job.
	TrainerNice int
	// Seed drives prompts, weights and data order.
	Seed uint64
	// Root is the folder with demo/train.py and trainer/python.
	Root string
	// Exe is the lull binary that children are started from.
	Exe string
	// Color says that the live table may use ANSI colours.
	Color bool
}

// DefaultOptions is the run that `make demo` does.
func DefaultOptions() Options {
	return Options{
		Out:    filepath.Join("out", "demo"),
		Window: 20 * time.Second,
		Engine: "emulator",
		Python: "python3",
		Seed:   1,
		Root:   ".",
	}
}

// TrainScript is the training job of the demo.
func (o Options) TrainScript() string { return filepath.Join(o.Root, "demo", "train.py") }

// Validate names the flag, the value and the rule of the first thing wrong.
func (o Options) Validate() error {
	if o.Window < time.Second || o.Window > 10*time.Minute {
		return fmt.Errorf("demo: --seconds: got %v, want 1 to 600", o.Window.Seconds())
	}
	if o.Requests < 0 {
		return fmt.Errorf("demo: --requests: got %d, want 0 (all) or more", o.Requests)
	}
	if o.TrainerNice < 0 || o.TrainerNice > 19 {
		return fmt.Errorf("demo: --trainer-nice: got %d, want 0 to 19", o.TrainerNice)
	}
	if o.Engine != "emulator" {
		return fmt.Errorf("demo: --engine: got %q, want emulator", o.Engine)
	}
	if o.Out == "" {
		return fmt.Errorf("demo: --out: got %q, want a folder", o.Out)
	}
	for _, p := range o.Phases {
		if !slices.Contains(PhaseNames(), p) {
			return fmt.Errorf("demo: --phases: got %q, want some of %s", p, strings.Join(PhaseNames(), ", "))
		}
	}
	if _, err := os.Stat(o.TrainScript()); err != nil {
		return fmt.Errorf("demo: train script %s: %w; run lull demo in the repository's root or give --root", o.TrainScript(), err)
	}
	return nil
}
