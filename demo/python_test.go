package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// testPython is the interpreter with torch that `make test` names.
func testPython(t *testing.T) string {
	t.Helper()
	python := os.Getenv("LULL_TEST_PYTHON")
	if python == "" {
		t.Skip("LULL_TEST_PYTHON is not set: run `make test`, or set it to the output of scripts/pyenv base")
	}
	return python
}

func TestTrainScriptRunsWithoutASidecar(t *testing.T) {
	log := filepath.Join(t.TempDir(), "train.jsonl")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, testPython(t), "-m", "lull.run", "train.py", "--steps", "6", "--batch", "4", "--log", log)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join("..", "trainer", "python"), "LULL_SOCKET=", "OMP_NUM_THREADS=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	tail, err := openTail(log)
	if err != nil {
		t.Fatal(err)
	}
	defer tail.close()
	l := trainLog{tail: tail}
	if err := l.refresh(); err != nil {
		t.Fatal(err)
	}
	if l.ready == nil || l.ready.Floor < int64(30*m) || l.ready.Floor > int64(200*m) || l.ready.Baseline <= 0 {
		t.Fatalf("ready line: got %+v, want a floor of about 80 MiB and a baseline", l.ready)
	}
	for _, s := range l.steps {
		if s.Floor < l.ready.Floor {
			t.Errorf("step %d: got a floor of %d, want at least the ready line's %d", s.Step, s.Floor, l.ready.Floor)
		}
	}
	if len(l.steps) != 6 || l.steps[5].Samples != 24 || l.steps[5].Loss >= l.steps[0].Loss {
		t.Errorf("steps: got %+v, want 6 of 4 samples with a falling loss", l.steps)
	}
}

func TestTrainScriptDiffersInFiveLinesAtMost(t *testing.T) {
	text, err := os.ReadFile("train.py")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(text, []byte("  # lull\n")); n == 0 || n > 5 {
		t.Errorf("lines marked # lull: got %d, want 1 to 5", n)
	}
}

// TestDemoRunsFromEndToEnd runs the shortest demo there is: real server, real
// sidecar, real training, two seconds of load. It checks that everything plays
// together; figures of so short a run mean nothing.
func TestDemoRunsFromEndToEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("starts torch twice: left out of -short")
	}
	opts := DefaultOptions()
	opts.Python = testPython(t)
	opts.Root = ".."
	opts.Out = filepath.Join(t.TempDir(), "out")
	opts.Window = 2 * time.Second
	opts.Phases = []string{Lull}
	opts.TrainerNice = 0
	opts.Exe = filepath.Join(t.TempDir(), "lull")
	if out, err := exec.Command("go", "build", "-o", opts.Exe, "..").CombinedOutput(); err != nil {
		t.Fatalf("build lull: %v\n%s", err, out)
	}
	var table bytes.Buffer
	s, err := Run(t.Context(), &table, opts)
	if err != nil {
		t.Fatalf("%v\n%s", err, table.String())
	}
	if len(s.Phases) != 1 || s.Phases[0].Requests < 15 || s.Phases[0].Errors != 0 || s.Phases[0].TrainBytesMean <= 0 {
		t.Errorf("got %+v, want one phase with requests, no errors and a budget", s.Phases)
	}
	if s.Audit.Violations != 0 || s.Audit.Samples == 0 {
		t.Errorf("audit: got %+v, want samples and no violations", s.Audit)
	}
	if s.Handover.Shrinks+s.Handover.Grows == 0 {
		t.Error("handovers: got none, want some: the load needs memory that training was lent")
	}
	for _, name := range []string{"report.html", "summary.json", "events.jsonl"} {
		if info, err := os.Stat(filepath.Join(opts.Out, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: got %v, want a file that is not empty", name, err)
		}
	}
	checkEventKinds(t, filepath.Join(opts.Out, "events.jsonl"))
	if !strings.Contains(table.String(), "audit: ") || !strings.Contains(table.String(), liveHeader) {
		t.Errorf("table lacks its parts:\n%s", table.String())
	}
}

func checkEventKinds(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]bool{}
	for line := range bytes.Lines(text) {
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		kinds[e.Kind] = true
	}
	for _, kind := range []string{"arrive", "first", "token", "order", "ack", "confirm", "bound", "sample"} {
		if !kinds[kind] {
			t.Errorf("events.jsonl has no line of kind %s", kind)
		}
	}
}
