package sidecar

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/size"
)

// sleepStub answers as a vLLM does that has its sleep mode: requests wait while its
// pool is gone.
type sleepStub struct {
	mu      sync.Mutex
	there   *sync.Cond
	gone    bool
	running int
	moves   []string
}

func newSleepStub() *sleepStub {
	s := &sleepStub{}
	s.there = sync.NewCond(&s.mu)
	return s
}

func (s *sleepStub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.URL.Path {
	case "/v1/models":
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"lull-emulated","max_model_len":1024}]}`)
	case "/metrics":
		awake := 1
		if s.gone {
			awake = 0
		}
		fmt.Fprintf(w, "vllm:kv_cache_usage_perc 0\nvllm:num_requests_running %d\nvllm:num_requests_waiting 0\n"+
			"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"80\"} 1\nvllm:engine_sleep_state{sleep_state=\"awake\"} %d\n", s.running, awake)
	case "/is_paused":
		_, _ = io.WriteString(w, `{"is_paused":false}`)
	case "/pause":
		_, _ = io.WriteString(w, `{"status":"paused"}`)
	case "/release_kv_cache_memory":
		if s.running > 0 {
			http.Error(w, `{"error":"requires a completed pause first"}`, http.StatusInternalServerError)
			return
		}
		s.gone, s.moves = true, append(s.moves, "gone")
		_, _ = io.WriteString(w, `{"status":"kv_cache_released"}`)
	case "/wake_up":
		if s.gone {
			s.moves = append(s.moves, "back")
		}
		s.gone = false
		s.there.Broadcast()
		_, _ = io.WriteString(w, `{"status":"awake"}`)
	case "/v1/chat/completions":
		s.running++
		for s.gone {
			s.there.Wait()
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, event := range []string{`{"choices":[{"delta":{"content":"a"}}]}`, `{"choices":[{"delta":{"content":"b"}}]}`, "[DONE]"} {
			fmt.Fprintf(w, "data: %s\n\n", event)
		}
		s.running--
	default:
		http.NotFound(w, r)
	}
}

func (s *sleepStub) moved() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.moves, " ")
}

func TestStockVLLMLendsItsWholePoolInALullAndHasItBackForARequest(t *testing.T) {
	stub := newSleepStub()
	server := httptest.NewServer(stub)
	t.Cleanup(server.Close)
	r := newRig(t, func(f *config.File) {
		e := &f.Engines[0]
		e.Kind, e.URL, e.PID, e.Resident, e.Pool = engine.KindVLLMSleep, server.URL, startIdle(t), rigResident, rigElastic
		e.Idle = 300 * time.Millisecond
	})
	startFakeTrainer(t, r.socket, "honest")
	r.untilHeld(400 * size.MiB)
	if got := stub.moved(); got != "gone" {
		t.Fatalf("pool moves before a request: %q, want that it is gone", got)
	}
	r.mustAllBeWhole(r.burst(6, 100, 100))
	if got := stub.moved(); !strings.HasPrefix(got, "gone back") {
		t.Errorf("pool moves: %q, want it back for the requests", got)
	}
	r.untilHeld(400 * size.MiB)
	if p := r.state().Problems; len(p) > 0 {
		t.Errorf("problems %v, want none", p)
	}
}

// startIdle starts a process that does nothing and holds next to nothing; its pid.
func startIdle(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	return cmd.Process.Pid
}
