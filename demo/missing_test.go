package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// failing hands out the fake runs, but for the phases that are named.
func failing(why string, names ...string) func(context.Context, Phase) (*phaseRun, error) {
	runs := map[string]*phaseRun{}
	for _, run := range fakeRuns() {
		runs[run.Phase.Name] = run
	}
	return func(_ context.Context, p Phase) (*phaseRun, error) {
		for _, name := range names {
			if p.Name == name {
				return nil, errors.New(why)
			}
		}
		return runs[p.Name], nil
	}
}

// TestAPhaseThatFailsIsMissingFromTheReportWhichSaysWhy: the others are not lost.
func TestAPhaseThatFailsIsMissingFromTheReportWhichSaysWhy(t *testing.T) {
	const why = "the trainer got 0.1 s of CPU in 26 s"
	var out bytes.Buffer
	r := fakeRunner()
	r.out, r.opts.Out = &out, t.TempDir()
	runs, missing, err := r.runPhases(t.Context(), failing(why, Naive))
	if err != nil || len(runs) != 4 || runs[3].Phase.Name != Lull {
		t.Fatalf("got %d phases, %v, want the four others", len(runs), err)
	}
	slo := Objectives{TTFT: 135 * time.Millisecond, TBT: 76 * time.Millisecond}
	s := r.summarise(runs, slo)
	s.NotMeasured = missing
	page, file := filepath.Join(r.opts.Out, "report.html"), filepath.Join(r.opts.Out, "summary.json")
	if err := errors.Join(r.writeReport(page, s, runs, slo), s.write(file)); err != nil {
		t.Fatal(err)
	}
	printTable(&out, s)
	html, _ := os.ReadFile(page)
	for where, text := range map[string]string{
		"Not measured: naive release: " + why:                                           string(html),
		"phase naive: not measured: " + why + "\n":                                      out.String(),
		"not measured: phase naive: " + why + "\n":                                      out.String(),
		"n/a     TTFT attainment: naive + 15 points: phase naive was not measured\n":    out.String(),
		`<td class="l na">phase naive was not measured</td>`:                            string(html),
		`met     TBT attainment: inference only − 1 point: 100.0 % (want ≥ 99.0 %)`:     out.String(),
		`<td>TTFT attainment: inference only − 3 points</td><td>≥ 97.0 %</td><td>45.0 `: string(html),
	} {
		if !strings.Contains(text, where) {
			t.Errorf("not said: %q in %.2000s", where, text)
		}
	}
	text, _ := os.ReadFile(file)
	var written Summary
	if err := json.Unmarshal(text, &written); err != nil || len(written.NotMeasured) != 1 || written.NotMeasured[0] != (MissingPhase{Naive, why}) {
		t.Errorf("summary: got %+v, %v, want phase naive and why", written.NotMeasured, err)
	}
	if err := s.complete("out"); !errors.Is(err, ErrNotMeasured) || err.Error() != "demo: phase naive: not measured; the rest is in out/report.html, with the reason" {
		t.Errorf("got %v", err)
	}
	if err := fakeSummary(runs).complete("out"); err != nil {
		t.Errorf("nothing missing: got %v, want nil", err)
	}
}

func TestReportIsWrittenWhereNoPhaseWasMeasured(t *testing.T) {
	r := fakeRunner()
	r.out = &bytes.Buffer{}
	runs, missing, err := r.runPhases(t.Context(), failing("gone", PhaseNames(StudyMemory)...))
	if err != nil || len(runs) != 0 || len(missing) != 5 {
		t.Fatalf("got %d phases and %d missing, %v, want none and five", len(runs), len(missing), err)
	}
	s := r.summarise(runs, Objectives{})
	s.NotMeasured = missing
	path := filepath.Join(t.TempDir(), "report.html")
	if err := r.writeReport(path, s, runs, Objectives{}); err != nil {
		t.Fatal(err)
	}
	if page, _ := os.ReadFile(path); strings.Count(string(page), "Not measured: ") != 5 {
		t.Error("report: want all five phases said")
	}
}

func TestPhasesEndWhenTheDemoIsStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := fakeRunner()
	r.out = &bytes.Buffer{}
	began := 0
	_, _, err := r.runPhases(ctx, func(context.Context, Phase) (*phaseRun, error) {
		began++
		cancel()
		return nil, errors.New("cut")
	})
	if !errors.Is(err, context.Canceled) || began != 1 {
		t.Errorf("got %v after %d phases, want canceled after one", err, began)
	}
}
