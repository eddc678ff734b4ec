package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestTheDemoRunsWithARealVLLM is the shortest demo with vLLM that still compares
// answers: it checks that everything plays together; figures of so short a run
// mean nothing.
func TestTheDemoRunsWithARealVLLM(t *testing.T) {
	full = python(t, "LULL_TEST_PYTHON_FULL", "full")
	out := filepath.Join(t.TempDir(), "demo")
	cmd := exec.Command(shared.lull, "demo", "--engine", "vllm", "--seconds", "6", "--phases", "inference-only,lull", "--out", out, "--python", full)
	cmd.Dir = ".."
	table, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, table)
	}
	text, err := os.ReadFile(filepath.Join(out, "summary.json"))
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Engine string
		Phases []struct {
			Name             string
			Requests, Errors int
			TrainBytesMean   float64 `json:"train_bytes_mean"`
		}
		Handover struct{ Shrinks, Grows int }
		Audit    struct{ Samples, Violations int }
		Identity struct{ Compared, Differ int } `json:"token_identity"`
	}
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatalf("summary.json: %v", err)
	}
	if s.Engine != "vllm" || len(s.Phases) != 2 || s.Phases[1].TrainBytesMean <= 0 || s.Handover.Grows == 0 {
		t.Errorf("got %+v, want two phases and training that was lent memory", s)
	}
	for _, p := range s.Phases {
		if p.Requests == 0 || p.Errors != 0 {
			t.Errorf("phase %s: got %d requests and %d errors, want some and none", p.Name, p.Requests, p.Errors)
		}
	}
	if s.Audit.Samples == 0 || s.Audit.Violations != 0 {
		t.Errorf("audit: got %+v, want samples and no violations", s.Audit)
	}
	if s.Identity.Compared == 0 || s.Identity.Differ != 0 {
		t.Errorf("answers: got %+v, want all the same as without training", s.Identity)
	}
	if t.Failed() {
		t.Logf("%s", table)
	}
}
