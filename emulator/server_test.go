package emulator

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/lull-project/lull/emulator/model"
)

func TestRunPrintsOneReadyLineAndEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, quick(), w)
		w.Close()
	}()
	out := bufio.NewReader(r)
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Listening string
		PID       int
		Baseline  int64 `json:"baseline_bytes"`
		Resident  int64 `json:"resident_bytes"`
	}
	if err := json.Unmarshal([]byte(line), &got); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	if got.PID != os.Getpid() || got.Resident != 4<<20 || got.Baseline < 1<<20 || got.Listening == "" {
		t.Fatalf("ready line %s", line)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if rest, _ := io.ReadAll(out); len(rest) != 0 {
		t.Fatalf("more than one line: %q", rest)
	}
}

func TestRunSaysWhenTheReadyLineCannotBePrinted(t *testing.T) {
	r, w := io.Pipe()
	r.Close()
	err := Run(t.Context(), quick(), w)
	if err == nil || err.Error() != "emulate: print the ready line: io: read/write on closed pipe; the server ends" {
		t.Fatalf("got %v", err)
	}
}

func TestShutdownCutsARunningStream(t *testing.T) {
	cfg := quick()
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		t.Fatal(err)
	}
	s, err := start(t.Context(), cfg, listener, 0)
	if err != nil {
		t.Fatal(err)
	}
	resp := post(t, t.Context(), s, "/v1/completions", `{"prompt":"a","stream":true,"max_tokens":500,"ignore_eos":true}`)
	if _, err := io.ReadFull(resp.Body, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("got %v, want a broken transfer", err)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("second close: %v", err)
	}
}

func TestEngineThatCannotHaveMemoryEndsTheServer(t *testing.T) {
	cfg := quick()
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		t.Fatal(err)
	}
	s, err := start(t.Context(), cfg, listener, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.pool.Map(0); err != nil { // the engine's books are wrong from here on
		t.Fatal(err)
	}
	resp := post(t, t.Context(), s, "/v1/completions", fourTokens)
	if _, err := events(resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("stream: got %v, want a broken transfer", err)
	}
	want := "emulate: engine: memory: map page 0: mapped is true, want false; the server ends"
	if err := s.Wait(); err == nil || err.Error() != want {
		t.Errorf("got %v, want %q", err, want)
	}
	if s.engine.submit(newStream(model.Request{ID: 99, PromptTokens: 1})) {
		t.Error("an ended engine takes requests")
	}
	if _, ok := s.engine.setBound(t.Context(), 1, 0); ok {
		t.Error("an ended engine takes bounds")
	}
}

func TestTakenAddressIsAnError(t *testing.T) {
	s := startServer(t, quick())
	cfg := quick()
	cfg.Listen = s.Addr()
	_, err := Start(t.Context(), cfg)
	if err == nil || !strings.HasPrefix(err.Error(), "emulate: listen on "+s.Addr()+": ") {
		t.Fatalf("got %v", err)
	}
}

func TestModelsHealthAndVersionAnswer(t *testing.T) {
	s := startServer(t, quick())
	if status, body := call(t, s, "GET", "/v1/models", ""); status != 200 || !strings.Contains(body, `"id":"lull-emulated","max_model_len":512`) {
		t.Errorf("models: %d %s", status, body)
	}
	if status, body := call(t, s, "GET", "/health", ""); status != 200 || body != "" {
		t.Errorf("health: %d %s", status, body)
	}
	if status, body := call(t, s, "GET", "/version", ""); status != 200 || body != `{"version":"0.32.0+lull.emulated"}` {
		t.Errorf("version: %d %s", status, body)
	}
}

func TestStateHasEveryFieldOfTheContract(t *testing.T) {
	s := startServer(t, quick())
	_, body := call(t, s, "GET", "/lull/state", "")
	var got map[string]any
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(`pid baseline_bytes resident_bytes pool_bytes bound_bytes bound_epoch held_bytes needed_bytes
		short_bytes running waiting preemptions kv_bytes_per_token block_tokens max_model_len`)
	for _, name := range fields {
		if _, ok := got[name]; !ok {
			t.Errorf("no %s in %s", name, body)
		}
	}
	if len(got) != len(fields) || got["pool_bytes"] != float64(64<<20) || got["kv_bytes_per_token"] != float64(64<<10) {
		t.Errorf("state %s", body)
	}
}

func TestMetricsHaveVLLMsNames(t *testing.T) {
	s := startServer(t, quick())
	streamed(t, s, "/v1/completions", fourTokens)
	_, body := call(t, s, "GET", "/metrics", "")
	const labels = `engine="0",model_name="lull-emulated"`
	for _, want := range []string{
		`vllm:kv_cache_usage_perc{` + labels + `} 0`,
		`vllm:num_requests_running{` + labels + `} 0`,
		`vllm:num_requests_waiting{` + labels + `} 0`,
		`vllm:num_preemptions_total{` + labels + `} 0`,
		`vllm:prompt_tokens_total{` + labels + `} 1`,
		`vllm:generation_tokens_total{` + labels + `} 4`,
		`vllm:request_success_total{engine="0",finished_reason="length",model_name="lull-emulated"} 1`,
		`vllm:time_to_first_token_seconds_count{` + labels + `} 1`,
		`vllm:inter_token_latency_seconds_count{` + labels + `} 3`,
		`lull_emulator_step_lateness_seconds_count{` + labels + `} 5`,
		`block_size="32",cache_dtype="auto",enable_prefix_caching="False",engine="0",kv_cache_memory_bytes="67108864",kv_cache_size_tokens="1024",model_name="lull-emulated",num_gpu_blocks="32"} 1`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in the metrics:\n%s", want, body)
		}
	}
}
