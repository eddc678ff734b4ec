package demo

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/size"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files in testdata")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (go test -rewrite updates it; read the diff)\ngot:\n%s", path, got)
	}
}

func TestQuantilesAreNearestRankAndUntrimmed(t *testing.T) {
	var values []time.Duration
	for i := 1000; i >= 1; i-- {
		values = append(values, time.Duration(i)*time.Millisecond)
	}
	values[0] = time.Hour // one outlier is the maximum, and stays
	got := quantilesMS(values)
	if want := (Quantiles{P50: 500, P99: 990, Max: 3_600_000}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := quantilesMS(nil); got != (Quantiles{}) {
		t.Errorf("no values: got %+v, want zeros", got)
	}
	if got := quantilesMS([]time.Duration{7 * time.Millisecond}); got != (Quantiles{7, 7, 7}) {
		t.Errorf("one value: got %+v", got)
	}
}

// answer is a result whose first token comes after ttft and whose gaps follow.
func answer(sent, ttft float64, gaps ...float64) Result {
	r := Result{ID: "r", Due: at(sent), Sent: at(sent + 1)}
	now := sent + 1 + ttft
	r.Tokens = append(r.Tokens, at(now))
	for _, g := range gaps {
		now += g
		r.Tokens = append(r.Tokens, at(now))
	}
	return r
}

func TestErrorsAndMissingTokensAreMisses(t *testing.T) {
	cut := answer(0, 10, 10)
	cut.Err = errors.New("stream ended")
	results := []Result{
		answer(0, 100, 50, 90, 50), // one gap over, mean within
		answer(0, 100.001),         // over by a microsecond; no gap
		cut,                        // its TTFT is fine, but the answer is not whole
		{Due: at(0), Sent: at(0), Err: errors.New("refused")},
	}
	var s PhaseSummary
	latencies(&s, results, Objectives{TTFT: 100 * time.Millisecond, TBT: 70 * time.Millisecond})
	if s.Errors != 2 || s.TTFTAttainment != 0.25 {
		t.Errorf("TTFT: got %d errors, attainment %v, want 2 and 0.25", s.Errors, s.TTFTAttainment)
	}
	if s.Gaps != 4 || s.TBTAttainment != 0.5 { // 3 of 4 gaps, and two gaps that never came
		t.Errorf("TBT: got %d gaps, attainment %v, want 4 and 0.5", s.Gaps, s.TBTAttainment)
	}
	if s.TBTRequestAttainment != 0.3333 { // one of the three that should have gaps
		t.Errorf("TBT per request: got %v, want 0.3333", s.TBTRequestAttainment)
	}
}

func trainSteps() *trainLog {
	l := &trainLog{ready: &trainLine{T: unixUS(-2000)}}
	for i := range 14 {
		l.steps = append(l.steps, trainLine{T: unixUS(float64(i) * 2000), Step: i + 1, Samples: 64 * (i + 1), Loss: 5 - 0.2*float64(i)})
	}
	return l
}

func TestSamplesAreCountedInsideTheWindow(t *testing.T) {
	l := trainSteps()
	for millis, want := range map[float64]float64{-3000: 0, -2000: 0, -1000: 32, 0: 64, 500: 80, 25_000: 864, 99_000: 896} {
		if got := l.samplesAt(at(millis)); got != want {
			t.Errorf("at %v ms: got %v, want %v", millis, got, want)
		}
	}
	if got := (&trainLog{}).samplesAt(t0); got != 0 {
		t.Errorf("before the job is ready: got %v, want 0", got)
	}
	if end, ok := l.batchEnd(at(2500)); !ok || !end.Equal(at(4000)) {
		t.Errorf("end of the batch: got %v %v, want 4 s", end.Sub(t0), ok)
	}
	if _, ok := l.batchEnd(at(26_000)); ok {
		t.Error("end of the batch after the log: got one, want none")
	}
}

// fakeRuns are five phases of 25 s with known figures.
func fakeRuns() []*phaseRun {
	var runs []*phaseRun
	for i, p := range Phases() {
		run := &phaseRun{Phase: p, Start: t0, End: at(25_000)}
		run.Device = yardstick{Capacity: 1056 * m, Floor: 96 * m}
		for k := range 40 {
			run.Results = append(run.Results, answer(float64(k)*500, 50+float64(k*(i+1)), 20, 25, 30))
		}
		events := []sidecarEvent{order(-100, 1, 160*m*size.Bytes(i), false)}
		if p.Mode == "elastic" {
			for k := range 40 {
				t := float64(k)*600 + 100
				epoch := uint64(2*k + 2)
				took := float64(i * i * i) // naive 27 ms, lull 64 ms
				events = append(events,
					order(t, epoch, 300*m, true), ack(t+took/2, epoch, 290*m, "drop"),
					sidecarEvent{T: unixUS(t + took), Kind: "handover", Epoch: epoch, Shrink: true, From: int64(332 * m), Bytes: int64(300 * m), Freed: int64(32 * m), Result: "confirmed", How: "drop", TookUS: int64(took * 1000)},
					order(t+300, epoch+1, 332*m, false),
					sidecarEvent{T: unixUS(t + 301), Kind: "handover", Epoch: epoch + 1, From: int64(300 * m), Bytes: int64(332 * m), Result: "confirmed", TookUS: 900},
					sidecarEvent{T: unixUS(t), Kind: "hold", ID: "a"}, sidecarEvent{T: unixUS(t + 5), Kind: "release", ID: "a"},
				)
			}
			run.Report = trainerReport{MicrobatchTook: 800 * time.Millisecond, Recomputed: 12, WorkLostSampleSeconds: 1.5}
		}
		var samples []rawSample
		for k := range 5000 {
			samples = append(samples, raw(float64(k)*5, 600*m, size.Bytes(96+k%200)*m))
		}
		if p.Trains {
			run.Train = trainSteps()
		}
		run.Events, run.Ceilings = events[1:], buildCeilings(events)
		run.Verdict = judge(samples, 0, run.Device, run.Ceilings)
		runs = append(runs, run)
	}
	return runs
}

func fakeRunner() *runner {
	r := &runner{opts: DefaultOptions(), sizing: DefaultSizing(), epoch: t0, capacity: 1056 * m, floor: 96 * m, place: placement(StudyMemory, []int{0, 1}, 10)}
	for _, b := range []int64{40, 80, 160, 320} {
		r.curve = append(r.curve, trainLine{Budget: b << 20, Rate: 20 + float64(b)/40})
	}
	return r
}

func fakeSummary(runs []*phaseRun) Summary {
	s := fakeRunner().summarise(runs, Objectives{TTFT: 135 * time.Millisecond, TBT: 76 * time.Millisecond})
	s.Machine, s.Command = "a machine", "lull demo"
	return s
}

func TestSummaryFileKeepsItsFields(t *testing.T) {
	path := filepath.Join(t.TempDir(), "summary.json")
	if err := fakeSummary(fakeRuns()).write(path); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "summary.json", got)
	if err := fakeSummary(nil).write(filepath.Join(path, "x")); err == nil || !strings.Contains(err.Error(), "demo: summary: ") {
		t.Errorf("unwritable: got %v", err)
	}
}

func TestBarsSayByHowMuchTheyAreMissed(t *testing.T) {
	var out bytes.Buffer
	printTable(&out, fakeSummary(fakeRuns()))
	for i := range fakeSummary(nil).Bars {
		if b := fakeSummary(nil).Bars[i]; b.Skipped != Lull {
			t.Errorf("without phases: got %+v, want skipped", b)
		}
	}
	printTable(&out, fakeSummary(fakeRuns()[4:]))
	golden(t, "table.txt", out.Bytes())
}

func TestEventsFileIsInOrderOfTime(t *testing.T) {
	run := fakeRuns()[4]
	rec := newRecorder(Lull, t0)
	rec.observe("arrive", "r1", at(5))
	rec.observe("first", "r1", at(105))
	if got := rec.takeRecent(); len(got) != 1 || got[0] != 100*time.Millisecond {
		t.Errorf("recent TTFTs: got %v, want 100 ms", got)
	}
	rec.addSidecar(run.Events)
	rec.addSamples(run.Verdict.Samples)
	path := filepath.Join(t.TempDir(), "events.jsonl")
	if err := rec.appendTo(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	last := int64(-1 << 62)
	for line := range bytes.Lines(text) {
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		if e.T < last {
			t.Fatalf("time went back from %d to %d", last, e.T)
		}
		last = e.T
		kinds[e.Kind]++
	}
	for kind, want := range map[string]int{"arrive": 1, "first": 1, "order": 80, "ack": 40, "confirm": 80, "sample": 10000} {
		if kinds[kind] != want {
			t.Errorf("%s: got %d lines, want %d", kind, kinds[kind], want)
		}
	}
	if err := rec.appendTo(filepath.Join(path, "x")); err == nil || !strings.Contains(err.Error(), "demo: events: ") {
		t.Errorf("unwritable: got %v", err)
	}
}

func TestLogsWithBadLinesNameFileAndLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log.jsonl")
	if err := os.WriteFile(path, []byte("{\"kind\":\"ready\"}\n\noops\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readSidecarLog(path); err == nil || !strings.Contains(err.Error(), `log.jsonl:3: event "oops"`) {
		t.Errorf("sidecar: got %v", err)
	}
	tail, err := openTail(path)
	if err != nil {
		t.Fatal(err)
	}
	defer tail.close()
	l := trainLog{tail: tail}
	if err := l.refresh(); err == nil || !strings.Contains(err.Error(), `log.jsonl:3: train log "oops"`) || l.ready == nil {
		t.Errorf("trainer: got %v and ready %v", err, l.ready)
	}
	if _, err := openTail(filepath.Join(path, "none")); err == nil || !strings.Contains(err.Error(), "follow ") {
		t.Errorf("missing: got %v", err)
	}
}

func TestTailWaitsForWholeLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "grows.jsonl")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tail, err := openTail(path)
	if err != nil {
		t.Fatal(err)
	}
	defer tail.close()
	l := sidecarLog{tail: tail}
	for _, part := range []string{`{"kind":"or`, "der\"}\n{\"kind\"", ":\"ack\"}\n"} {
		if _, err := f.WriteString(part); err != nil {
			t.Fatal(err)
		}
		if err := l.refresh(); err != nil {
			t.Fatal(err)
		}
	}
	if len(l.events) != 2 || l.events[0].Kind != "order" || l.events[1].Kind != "ack" {
		t.Errorf("got %+v, want order and ack", l.events)
	}
}

func TestStateWithoutATrainerIsAnError(t *testing.T) {
	got, err := parseState([]byte(`{"trainers":[{"id":"a","report":{"microbatch_ns":810500000,"recomputed":3,"work_lost_sample_s":0.5}}]}`))
	if err != nil || got.MicrobatchTook != 810500*time.Microsecond || got.Recomputed != 3 || got.WorkLostSampleSeconds != 0.5 {
		t.Errorf("got %+v, %v", got, err)
	}
	for in, want := range map[string]string{`{"trainers":[]}`: "got no trainers, want one", "no": `sidecar state "no"`} {
		if _, err := parseState([]byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", in, err, want)
		}
	}
}
