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
	// Window is how long each phase sends load; 0 takes the engine's own: 20 s for
	// the emulator, 60 s for vLLM. Below it too few shrinks happen for a tail.
	Window time.Duration
	// Requests caps the requests of a phase; 0 means all that arrive in Window.
	Requests int
	// Engine is the LLM server, one of Engines.
	Engine string
	// Study is what the phases compare: memory, or isolation, which needs a real
	// server.
	Study string
	// Python is the interpreter with torch.
	Python string
	// Phases are the phases to run, in this order; empty means all.
	Phases []string
	// TrainerNice is the nice value of the training job, 0 to 19; 0 leaves it the
	// demo's own. On a quiet machine it has a core for itself anyway; where other work
	// competes for that core, a higher value starves the job.
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
		Engine: EngineEmulator,
		Study:  StudyMemory,
		Python: "python3",
		Seed:   1,
		Root:   ".",
	}
}

// TrainScript is the training job of the demo.
func (o Options) TrainScript() string { return filepath.Join(o.Root, "demo", "train.py") }

// Validate names the flag, the value and the rule of the first thing wrong.
func (o Options) Validate() error {
	if o.Window != 0 && (o.Window < time.Second || o.Window > 10*time.Minute) {
		return fmt.Errorf("demo: --seconds: got %v, want 1 to 600, or 0 for the engine's own", o.Window.Seconds())
	}
	if o.Requests < 0 {
		return fmt.Errorf("demo: --requests: got %d, want 0 (all) or more", o.Requests)
	}
	if o.TrainerNice < 0 || o.TrainerNice > 19 {
		return fmt.Errorf("demo: --trainer-nice: got %d, want 0 to 19", o.TrainerNice)
	}
	if !slices.Contains(Engines(), o.Engine) {
		return fmt.Errorf("demo: --engine: got %q, want %s", o.Engine, strings.Join(Engines(), " or "))
	}
	switch {
	case o.Study != StudyMemory && o.Study != StudyIsolation:
		return fmt.Errorf("demo: --study: got %q, want %s or %s", o.Study, StudyMemory, StudyIsolation)
	case o.Study == StudyIsolation && o.Engine != EngineVLLM:
		return fmt.Errorf("demo: --study: got %s with --engine %s, want vllm: the emulator's timing sleeps", o.Study, o.Engine)
	}
	if o.Out == "" {
		return fmt.Errorf("demo: --out: got %q, want a folder", o.Out)
	}
	for _, p := range o.Phases {
		if names := PhaseNames(o.Study); !slices.Contains(names, p) {
			return fmt.Errorf("demo: --phases: got %q, want some of %s", p, strings.Join(names, ", "))
		}
	}
	if _, err := os.Stat(o.TrainScript()); err != nil {
		return fmt.Errorf("demo: train script %s: %w; run lull demo in the repository's root or give --root", o.TrainScript(), err)
	}
	return nil
}
