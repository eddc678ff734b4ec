package demo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestReportIsOnePageWithEveryPlotAndNoLinkOutside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.html")
	if keep := os.Getenv("LULL_KEEP_REPORT"); keep != "" {
		path = keep // to look at it
	}
	runs := fakeRuns()
	slo := Objectives{TTFT: 135 * time.Millisecond, TBT: 76 * time.Millisecond}
	if err := fakeRunner().writeReport(path, fakeSummary(runs), runs, slo); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	if got := strings.Count(page, "<svg "); got != 11 { // memory 1 + 4, TTFT, TBT, samples, loss, curve, handovers
		t.Errorf("plots: got %d, want 11", got)
	}
	for _, bad := range []string{"src=", "href=", "@import", "url(", "<?xml", "NaN", "Serif;"} {
		if strings.Contains(page, bad) {
			t.Errorf("page contains %q", bad)
		}
	}
	for _, want := range []string{
		"competition for compute between inference and training is <b>not</b> in these figures", "CC-BY 4.0",
		"a machine", "<code>lull demo</code>", "after a warm-up of 3 s", "Since the start of the job, warm-up included: recomputed segments 12", "runs the server with a static pool",
		"A stock server: its whole pool", "64 KiB of KV", "21 samples/s with 40 MiB at the slowest, 28 with 320 MiB at the fastest", "order to shrink", "missed by", "trainer on core 1 at nice 10",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("page lacks %q", want)
		}
	}
	if len(text) > 3<<20 {
		t.Errorf("page: %d bytes, want at most 3 MiB", len(text))
	}
}

func TestReportOfFewPhasesLeavesOutWhatIsMissing(t *testing.T) {
	runs := fakeRuns()[:1]
	r := fakeRunner()
	r.curve = nil
	path := filepath.Join(t.TempDir(), "report.html")
	if err := r.writeReport(path, fakeSummary(runs), runs, Objectives{}); err != nil {
		t.Fatal(err)
	}
	if err := r.writeReport(filepath.Join(path, "x"), Summary{}, nil, Objectives{}); err == nil || !strings.Contains(err.Error(), "demo: report: ") {
		t.Errorf("unwritable: got %v", err)
	}
}
