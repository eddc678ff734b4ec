package sidecar

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/engine/enginetest"
	"github.com/lull-project/lull/size"
)

// kvStub answers requests and metrics as a vLLM does whose KV cache is kvcached's;
// an answer takes a while, and no memory.
type kvStub struct{ running atomic.Int64 }

func (s *kvStub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/models":
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"lull-emulated","max_model_len":1024}]}`)
	case "/metrics":
		fmt.Fprintf(w, "vllm:kv_cache_usage_perc 0\nvllm:num_requests_running %d\nvllm:num_requests_waiting 0\n"+
			"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"80\"} 1\n", s.running.Load())
	case "/v1/chat/completions":
		s.running.Add(1)
		defer s.running.Add(-1)
		w.Header().Set("Content-Type", "text/event-stream")
		for _, event := range []string{`{"choices":[{"delta":{"content":"a"}}]}`, `{"choices":[{"delta":{"content":"b"}}]}`, "[DONE]"} {
			fmt.Fprintf(w, "data: %s\n\n", event)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(300 * time.Millisecond): // the answer's own pace
			}
		}
	default:
		http.NotFound(w, r)
	}
}

// startKVPeer starts a process with kvcached's rules over a segment.
func startKVPeer(t *testing.T, segment string) *enginetest.Peer {
	t.Helper()
	return enginetest.Start(t, filepath.Join("..", "engine", "testdata", "kvcached_peer.py"), segment, strconv.Itoa(int(rigElastic)), strconv.Itoa(int(16*size.MiB)))
}

func TestKvcachedLendsThroughItsSegmentAndGetsItBack(t *testing.T) {
	segment := filepath.Join(t.TempDir(), "kvcached_main")
	peer := startKVPeer(t, segment)
	peer.Do("alloc 1", "ok")
	stub := httptest.NewServer(&kvStub{})
	t.Cleanup(stub.Close)
	r := newRig(t, func(f *config.File) {
		e := &f.Engines[0]
		e.Kind, e.URL, e.Segment, e.PID, e.Resident = engine.KindKvcached, stub.URL, segment, peer.Process.Pid, rigResident
	})
	limit := func() size.Bytes {
		raw, err := os.ReadFile(segment)
		if err != nil || len(raw) != 24 {
			t.Fatalf("segment: %d bytes, %v", len(raw), err)
		}
		return size.Bytes(binary.NativeEndian.Uint64(raw))
	}
	startFakeTrainer(t, r.socket, "honest")
	r.untilHeld(400 * size.MiB)
	lent := limit()
	if lent > rigElastic-400*size.MiB {
		t.Errorf("the limit is %v while training holds 400 MiB of %v", lent, rigElastic)
	}
	peer.Do("alloc "+strconv.Itoa(int(lent/(16*size.MiB))), "short") // one page-id is in use
	answers := make(chan []answer, 1)
	go func() { answers <- r.burst(6, 100, 100) }()
	r.until("the limit rises for the burst", func() bool { return limit() > lent })
	r.mustAllBeWhole(<-answers)
	if p := r.state().Problems; len(p) > 0 {
		t.Errorf("problems %v, want none", p)
	}
	if strings.Contains(r.logs.String(), "bound not set") {
		t.Error("an order to the segment failed")
	}
	r.untilHeld(400 * size.MiB)
}
