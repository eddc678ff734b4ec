package telemetry

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	server := httptest.NewServer(m.Handler())
	defer server.Close()
	resp, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	defer server.Client().CloseIdleConnections()
	var b strings.Builder
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		b.WriteString(lines.Text() + "\n")
	}
	return b.String()
}

func TestInFlightReturnsToZeroAndOutcomesAreCountedOnce(t *testing.T) {
	m := NewMetrics()
	m.RequestStarted()
	m.RequestDone(Request{Model: "m", Outcome: "forwarded", TTFT: 30 * time.Millisecond, PromptTokens: 7, OutputTokens: 3, TokenSource: "usage"})
	m.RequestStarted()
	m.RequestDone(Request{Model: "m", Outcome: "client_gone", Held: 2 * time.Millisecond})
	m.Judged("default", "ttft", "within")
	m.Judged("default", "ttft", "no_data")
	m.Override("x-slo-ttft-ms", "clamped")
	m.Handover(true, "confirmed", "drop", 2*time.Millisecond, 1<<20)
	m.Memory("host0", "main", "kv_bound", 42)
	m.TrainingSamples("job", "0", 64)
	m.CoreFailed()
	m.Gap(time.Millisecond)
	m.TrainersConnected(2)
	m.Failover("second")
	m.ConfigReload(true)
	m.ConfigReload(false)
	m.ShowServing(func() Serving { return Serving{Ready: true, Up: map[string]bool{"main": false, "second": true}} })
	text := scrape(t, m)
	for _, want := range []string{
		"lull_requests_in_flight 0", `lull_requests_total{model="m",outcome="forwarded"} 1`, `lull_requests_total{model="m",outcome="client_gone"} 1`,
		`lull_ttft_seconds_count{model="m"} 1`, "lull_request_held_seconds_count 1", "lull_request_overhead_seconds_count 2", `lull_tokens_total{direction="output",source="usage"} 3`,
		`lull_slo_total{objective="ttft",result="within",slo="default"} 1`, `lull_slo_total{objective="ttft",result="no_data",slo="default"} 1`,
		`lull_slo_overrides_total{header="x-slo-ttft-ms",result="clamped"} 1`,
		`lull_handovers_total{direction="shrink",how="drop",result="confirmed"} 1`, "lull_freed_bytes_total 1.048576e+06",
		`lull_memory_bytes{device="host0",owner="main",term="kv_bound"} 42`, `lull_training_samples{job="job",rank="0"} 64`,
		"lull_core_failures_total 1", "lull_tbt_seconds_count 1", "lull_trainers_connected 2", "lull_ready 1",
		`lull_engine_up{engine="main"} 0`, `lull_engine_up{engine="second"} 1`, `lull_failover_requests_total{engine="second"} 1`,
		`lull_config_reloads_total{result="ok"} 1`, `lull_config_reloads_total{result="refused"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("metrics lack %q", want)
		}
	}
}

func TestNoSeriesBeforeItsFirstSample(t *testing.T) {
	if text := scrape(t, NewMetrics()); strings.Contains(text, "lull_ttft_seconds") || strings.Contains(text, "lull_handovers_total") {
		t.Error("a series stands without a sample")
	}
}

func TestModelNamesOfClientsCannotGrowTheSeriesWithoutEnd(t *testing.T) {
	m := NewMetrics()
	for i := range 1000 {
		m.RequestStarted()
		m.RequestDone(Request{Model: fmt.Sprint("model-", i), Outcome: "forwarded"})
	}
	m.RequestStarted()
	m.RequestDone(Request{Model: strings.Repeat("x", 5000), Outcome: "forwarded"})
	text := scrape(t, m)
	if n := strings.Count(text, "lull_requests_total{"); n != 65 {
		t.Errorf("%d series, want 64 names and one for all others", n)
	}
	if !strings.Contains(text, `lull_requests_total{model="other",outcome="forwarded"} 937`) {
		t.Error("the others are not counted together")
	}
}

func TestEventsFileHasOneLineAnEvent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	e, err := OpenEvents(path, NewMetrics())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		e.Add(Event{T: int64(i), Kind: "order", Epoch: 1<<32 | uint64(i), Bytes: 5})
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(path)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	var last Event
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || len(lines) != 100 || last.Epoch != 1<<32|99 {
		t.Errorf("%d lines, last %+v, %v", len(lines), last, err)
	}
}

func TestEventsErrorNamesTheKeyAndTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none", "events.jsonl")
	if _, err := OpenEvents(path, nil); err == nil || !strings.HasPrefix(err.Error(), "telemetry.events: open "+path) {
		t.Errorf("error %v", err)
	}
}

func TestNoEventsFileTakesEventsAndWritesNothing(t *testing.T) {
	var e *Events
	e.Add(Event{Kind: "order"})
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

func TestFullQueueDropsAndCountsInsteadOfWaiting(t *testing.T) {
	m := NewMetrics()
	e := &Events{queue: make(chan Event, 1), metrics: m} // nobody writes
	e.Add(Event{})
	e.Add(Event{})
	if text := scrape(t, m); !strings.Contains(text, "lull_events_dropped_total 1\n") {
		t.Error("the drop is not counted")
	}
}

func TestSeriesOfATrainerEndWithIt(t *testing.T) {
	m := NewMetrics()
	m.Memory("host0", "job/0/host0", "held", 7)
	m.Memory("host0", "main", "kv_bound", 7)
	m.TrainingSamples("job", "0", 7)
	m.ForgetTrainer("host0", "job/0/host0", "job", "0")
	text := scrape(t, m)
	if strings.Contains(text, "job/0/host0") || strings.Contains(text, "lull_training_samples{") {
		t.Error("series of a trainer that has left still stand")
	}
	if !strings.Contains(text, `owner="main"`) {
		t.Error("the engine's series went with the trainer's")
	}
}

func TestEventsThatAFullDiskLosesAreCounted(t *testing.T) {
	m := NewMetrics()
	e, err := OpenEvents("/dev/full", m)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		e.Add(Event{Kind: "order"})
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if text := scrape(t, m); !strings.Contains(text, "lull_events_dropped_total 3\n") {
		t.Errorf("want all three counted as dropped:\n%s", text)
	}
}
