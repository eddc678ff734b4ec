package cli

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/sidecar"
	"github.com/lull-project/lull/size"
)

// topOf is what lull top prints of a state, with single spaces.
func topOf(t *testing.T, state sidecar.State, handovers []sidecar.Handover) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v1/state", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(state) })
	mux.HandleFunc("/api/v1/handovers", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(handovers) })
	srv := httptest.NewServer(mux)
	defer srv.Close()
	var out bytes.Buffer
	root := Root()
	root.SetOut(&out)
	root.SetArgs([]string{"top", srv.URL}) // no terminal: one screen
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	lines := []string{}
	for _, l := range strings.Split(out.String(), "\n") {
		lines = append(lines, strings.Join(strings.Fields(l), " "))
	}
	return strings.Join(lines, "\n")
}

// TestTopReadsWhatTheSidecarSays holds the names of the client to those of the server.
func TestTopReadsWhatTheSidecarSays(t *testing.T) {
	half := 0.5
	state := sidecar.State{
		Session: 7, Deciding: true, Lending: true, Requests: 3,
		Ledger: &handover.State{
			Devices:          []handover.DeviceState{{ID: "d0", Capacity: 3 * size.GiB, Headroom: 64 * size.MiB, Free: 5 * size.MiB, Breaches: 4, Deferred: 6}},
			Engines:          []handover.EngineState{{ID: "main", Pool: size.GiB, Bound: 512 * size.MiB, Held: 100 * size.MiB, Target: 300 * size.MiB, Reserve: handover.ReserveState{Bytes: 16 * size.MiB, Why: "priced"}}},
			Trainers:         []handover.TrainerState{{ID: "gpt/0", Device: "d0", Floor: 96 * size.MiB, Budget: 700 * size.MiB, Held: 600 * size.MiB, Owed: true}},
			ExpectedHandover: 4 * time.Millisecond, HandoverTail: 12 * time.Millisecond,
		},
		Memory: []sidecar.OwnerMemory{
			{Device: "each", Owner: "main", Party: "engine", Bytes: map[string]int64{"kv_cache": int64(90 * size.MiB), "cache": int64(10 * size.MiB)}},
			{Device: "d0", Owner: "gpt/0", Party: "trainer", Bytes: map[string]int64{"weights": int64(48 * size.MiB), "activations": int64(600 * size.MiB)}, Reclaimable: map[string]int64{"50ms": int64(400 * size.MiB)}},
		},
		SLO:      []sidecar.SLOState{{Name: "gold", Objectives: []sidecar.ObjectiveState{{Objective: "ttft", Target: 0.99, Windows: []sidecar.WindowState{{Window: "1m"}, {Window: "5m", Attainment: &half}}}}}},
		Problems: []string{"engine main: \x1b[2Jnot read"},
	}
	handovers := []sidecar.Handover{{At: time.Now(), Trainer: "gpt/0", Direction: "shrink", Reason: "arrival", How: "drop", Result: "late", FromBytes: int64(size.GiB), ToBytes: int64(700 * size.MiB), TookUS: 4200},
		{At: time.Now(), Direction: "shrink", Result: "superseded"}, {At: time.Now(), Direction: "shrink", Result: "superseded"}, {At: time.Now(), Direction: "grow", Result: "confirmed"},
	}
	text := topOf(t, state, handovers)
	for _, want := range []string{
		"session 7 lending 3 requests now a handover takes 4ms on average, few over 12ms (mean + 4 deviations)",
		"DEVICE CAPACITY HEADROOM FREE BREACHES DEFERRED\nd0 3.0GiB 64.0MiB 5.0MiB 4 6",
		"OWNER WEIGHTS KV ACTIV. CACHE ALL <5ms <50ms <1s\nmain on each - 90.0MiB - 10.0MiB 100.0MiB - - -\ngpt/0 on d0 48.0MiB - 600.0MiB - 648.0MiB - 400.0MiB -",
		"main 1.0GiB 512.0MiB 300.0MiB 100.0MiB 16.0MiB priced",
		"TRAINER DEVICE FLOOR BUDGET HELD STATE\ngpt/0 d0 96.0MiB 700.0MiB 600.0MiB owes an order",
		"Shrinks that ended in the last minute: 0 in time, 1 late or not at all, 2 superseded by a later order.",
		"shrink gpt/0 arrival 1.0GiB 700.0MiB 4.2ms drop late",
		"OBJECTIVE TARGET 1M 5M\ngold ttft 99% - 50.00%",
		"! engine main: ?[2Jnot read",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("not shown: %s", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

// TestTopOfARelaySaysWhatItRelays: on no device there is no table to fill.
func TestTopOfARelaySaysWhatItRelays(t *testing.T) {
	state := sidecar.State{
		Requests: 1, Ledger: &handover.State{}, Engines: []sidecar.EngineState{{Name: "main", Kind: "vllm"}},
		Served: sidecar.ServedState{Requests: 12, TTFTSamples: 11, TTFTP50: 35 * time.Millisecond, TTFTP99: 210 * time.Millisecond},
	}
	text := topOf(t, state, []sidecar.Handover{})
	const want = "Relaying main (vllm), on no device: nothing is lent. 12 requests ended since the start, TTFT P50 35ms, P99 210ms (n = 11).\n"
	if !strings.Contains(text, want) || !strings.Contains(text, "nothing to lend 1 requests now\n") || strings.Contains(text, "OWNER") {
		t.Errorf("got %s\nwant %s", text, want)
	}
	text = topOf(t, sidecar.State{Ledger: &handover.State{}}, nil)
	if want := "Relaying a server that is not known yet, on no device: nothing is lent. 0 requests ended since the start.\n"; !strings.Contains(text, want) {
		t.Errorf("got %s\nwant %s", text, want)
	}
}
