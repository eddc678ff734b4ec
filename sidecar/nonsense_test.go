package sidecar

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/size"
)

// kvMetrics are the least that a vLLM publishes.
const kvMetrics = "vllm:kv_cache_usage_perc 0\nvllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"80\"} 1\n"

// nonsense stands before a server that is sound and answers its metrics with
// something else for as long as that is set.
type nonsense struct {
	sound http.Handler
	said  atomic.Pointer[func(w http.ResponseWriter, r *http.Request)]
	asked atomic.Int64
}

func (n *nonsense) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if say := n.said.Load(); say != nil && r.URL.Path == "/metrics" {
		n.asked.Add(1)
		(*say)(w, r)
		return
	}
	n.sound.ServeHTTP(w, r)
}

// text answers with one text.
func text(s string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) }
}

// inTurn is two servers that share a port: each connection belongs to one.
func inTurn(a, b string) func(http.ResponseWriter, *http.Request) {
	var mu sync.Mutex
	of := map[string]string{}
	return func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		said, ok := of[r.RemoteAddr]
		if !ok {
			said = []string{a, b}[len(of)%2]
			of[r.RemoteAddr] = said
		}
		mu.Unlock()
		_, _ = io.WriteString(w, said)
	}
}

// TestNonsenseOfAServerIsNamedStopsGrowthAndNoRequest: whatever a server's metrics
// say, readyz names it and stays ready, training grows no further, and requests are
// answered whole.
func TestNonsenseOfAServerIsNamedStopsGrowthAndNoRequest(t *testing.T) {
	segment := filepath.Join(t.TempDir(), "kvcached_main")
	peer := startKVPeer(t, segment)
	peer.Do("alloc 1", "ok")
	server := &nonsense{sound: &kvStub{}}
	stub := httptest.NewServer(server)
	t.Cleanup(stub.Close)
	r := newRig(t, func(f *config.File) {
		e := &f.Engines[0]
		e.Kind, e.URL, e.Segment, e.PID, e.Resident = engine.KindKvcached, stub.URL, segment, peer.Process.Pid, rigResident
	})
	startFakeTrainer(t, r.socket, "honest")
	r.untilHeld(400 * size.MiB)
	megabytes := bytes.Repeat([]byte("vllm:kv_cache_usage_perc 0\n"), 1<<20/27)
	faults := []struct {
		name, want string
		say        func(http.ResponseWriter, *http.Request)
	}{
		{"missing", "got neither vllm:num_requests_running nor sglang:num_running_reqs", text("")},
		{"renamed", "got neither vllm:num_requests_running nor", text(strings.ReplaceAll(kvMetrics, "requests_running", "running_requests"))},
		{"NaN", "vllm:num_requests_waiting: got NaN, want a number of 0 or more", text(strings.Replace(kvMetrics, "waiting 0", "waiting NaN", 1))},
		{"HTML", `want Prometheus's text format; is this the server's own address?`, text("<!doctype html><title>Sign in</title>")},
		{"100 MB", "got more than 8.0MiB, want a server's own answer", func(w http.ResponseWriter, _ *http.Request) {
			for range 100 {
				if _, err := w.Write(megabytes); err != nil {
					return
				}
			}
		}},
		{"two servers on one port", "two servers answer there in turn", inTurn(kvMetrics+"vllm:num_preemptions_created 1.7e9\n", kvMetrics+"vllm:num_preemptions_created 1.8e9\n")},
	}
	for i, c := range faults {
		if i == len(faults)-1 { // it stays told for half a minute, so that all is well again before it
			server.said.Store(nil)
			r.untilHeld(400 * size.MiB)
		}
		server.said.Store(&c.say)
		r.until(c.name+": readyz names the engine and what it answered, and is ready", func() bool {
			status, body := r.readyz()
			return status == http.StatusOK && strings.Contains(body, "engine main: ") && strings.Contains(body, c.want)
		})
		r.mustAllBeWhole(r.burst(4, 100, 100))
		r.until(c.name+": no request is left", func() bool { return r.state().State.Requests == 0 })
		low, asked := r.budget(), server.asked.Load()
		r.until(c.name+": an idle engine was read three times more in vain", func() bool { return server.asked.Load() >= asked+3 }) // one a second: growth takes two
		if got := r.budget(); got > low {
			t.Errorf("%s: the budget rose from %v to %v beside an engine that cannot be read", c.name, low, got)
		}
		if r.state().Ledger.Engines[0].Down {
			t.Errorf("%s: the engine counts as down, though it serves", c.name)
		}
	}
}

// readyz is /readyz's status and body, 0 where it did not answer.
func (r *rig) readyz() (status int, body string) {
	resp, err := r.client.Get(r.admin + "/readyz")
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, strings.ReplaceAll(string(raw), `\"`, `"`)
}
