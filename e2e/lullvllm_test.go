package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const lullVLLMConfig = `listen: "127.0.0.1:0"
state_dir: %[1]s
admin: {listen: "127.0.0.1:0"}
devices: [{id: host0, kind: host, capacity: %[3]dMiB, headroom: 96MiB}]
engines: [{name: main, kind: lull-vllm, url: "http://127.0.0.1:%[2]d", devices: [host0], page: %[4]s}]
trainers: {socket: %[1]s/lull.sock}
`

// vllmPool is the pool of the real vLLM, 64 KiB a token.
const vllmPool = 256

// startVLLM starts a real vLLM with the plugin on the rig's port; its page is in
// the folder.
func (r *rig) startVLLM(t *testing.T, dir string) {
	t.Helper()
	env := []string{"LULL_VLLM_DIR=" + dir, "LULL_VLLM_NAME=main", "OMP_NUM_THREADS=1", "VLLM_CPU_OMP_THREADS_BIND=nobind",
		"MALLOC_MMAP_THRESHOLD_=65536", "MALLOC_TRIM_THRESHOLD_=65536", "MALLOC_ARENA_MAX=2", "ONEDNN_PRIMITIVE_CACHE_CAPACITY=16"}
	var err error
	r.engine, err = start("lull-vllm", env, nil, full, "scripts/tiny_vllm.py", "--work", filepath.Join(shared.dir, "lull-vllm"),
		"--port", strconv.Itoa(r.port), "--dtype", "float32", "--layers", "8", "--hidden", "64", "--heads", "32", "--kv-heads", "32", "--",
		"--kv-cache-memory-bytes", strconv.Itoa(vllmPool*mib), "--block-size", "32", "--max-model-len", "1536",
		"--max-num-seqs", "32", "--enforce-eager", "--no-enable-prefix-caching")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.engine.stop)
	began := time.Now()
	if err := until(r.engine, 8*time.Minute, 200*time.Millisecond, func() bool { return strings.Contains(get(r.base()+"/v1/models"), `"tiny"`) }); err != nil {
		t.Fatalf("vLLM did not start: %v\n%s", err, r.engine.tail())
	}
	fmt.Printf("e2e: vllm with lull-vllm: started in %v\n", time.Since(began).Round(time.Second))
}

// base is the server's own address.
func (r *rig) base() string { return fmt.Sprintf("http://127.0.0.1:%d", r.port) }

// greedy asks for n answers at once and gives their token ids.
func greedy(t *testing.T, base string, n int) [][]int {
	t.Helper()
	ids := make([][]int, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			prompt := strings.Repeat(string(rune('a'+i))+"bcd ", 80)
			body := fmt.Sprintf(`{"model":"tiny","max_tokens":40,"temperature":0,"ignore_eos":true,"return_token_ids":true,"prompt":%q}`, prompt)
			got, err := fetch(http.MethodPost, base+"/v1/completions", body)
			var answer struct {
				Choices []struct {
					IDs []int `json:"token_ids"`
				}
			}
			if err == nil {
				err = json.Unmarshal(got.body, &answer)
			}
			if err != nil || got.status != http.StatusOK || len(answer.Choices) != 1 {
				t.Errorf("request %d: got %d %.300s: %v", i, got.status, got.body, err)
				return
			}
			ids[i] = answer.Choices[0].IDs
		})
	}
	all.Wait()
	return ids
}

// TestARealVLLMLendsItsCacheToRealTrainingAndTakesItBack is the whole loop with
// nothing emulated: vLLM with the plugin, the sidecar, PyTorch.
func TestARealVLLMLendsItsCacheToRealTrainingAndTakesItBack(t *testing.T) {
	full = python(t, "LULL_TEST_PYTHON_FULL", "full")
	pages, err := os.MkdirTemp("/dev/shm", "lull-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(pages) })
	r := &rig{port: freePort()}
	r.startVLLM(t, pages)
	want := greedy(t, r.base(), 8)
	r.share(t, func(dir string) []byte {
		return fmt.Appendf(nil, lullVLLMConfig, dir, r.port, vllmCapacity, filepath.Join(pages, "main.page"))
	}, "demo/train.py", "--batch", "64")
	lent := func(st state) bool {
		return len(st.Ledger.Trainers) == 1 && st.Ledger.Engines[0].Bound <= vllmPool*mib/2 && st.Ledger.Trainers[0].Held > 64*mib && trained(st) > 0
	}
	r.waitFor(t, "training grows into idle KV memory", 2*time.Minute, lent)

	t.Run("a burst takes it back and its answers are those of vLLM alone", func(t *testing.T) {
		if got := greedy(t, r.url, 8); !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("token ids: got %v, want %v", got, want)
		}
		shrinks := r.shrinks(t)
		if len(shrinks) == 0 {
			t.Error("got no shrink that freed memory, want some: the burst needs what was lent")
		}
		for _, s := range shrinks {
			t.Logf("freed %d MiB by %s in %d us (%s)", s.Freed/mib, s.How, s.TookUS, s.Result)
		}
		r.waitFor(t, "training grows again after the burst", 2*time.Minute, lent)
		r.neverExceeded(t)
	})

	t.Run("when vLLM is killed training makes room and its successor is taken over", func(t *testing.T) {
		before := r.state(t).Ledger.Trainers[0].Budget
		if err := syscall.Kill(-r.engine.cmd.Process.Pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-r.engine.ended
		st := r.waitFor(t, "the engine is down and its start-up demand is free", 30*time.Second, func(st state) bool {
			return st.Ledger.Engines[0].Down && st.Ledger.roomForStart()
		})
		if got := st.Ledger.Trainers[0].Budget; got >= before {
			t.Errorf("the budget went from %d to %d, want less: vLLM fills its whole pool when it starts", before, got)
		}
		r.startVLLM(t, pages)
		r.waitFor(t, "the engine is up again", 30*time.Second, func(st state) bool { return !st.Ledger.Engines[0].Down })
		if got := greedy(t, r.url, 8); !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("after the restart: got %v, want %v", got, want)
		}
		r.neverExceeded(t)
		r.waitFor(t, "training grows again", 2*time.Minute, lent)
	})
}

// neverExceeded checks the ledger's own account of the device. What a Python server
// holds besides KV moves by a MiB or two at any time: the ledger calls that the
// world's doing, and the headroom is for it.
func (r *rig) neverExceeded(t *testing.T) {
	t.Helper()
	if d := r.state(t).Ledger.Devices[0]; d.WorstOver > 8*mib || d.Over != 0 {
		t.Errorf("got %+v, want the ledger never exceeded", d)
	}
}

// vllmCapacity is the device in MiB: what vLLM holds besides KV, the trainer's
// floor, the pool and the headroom, and little more, so that training must borrow
// from the pool.
const vllmCapacity = 620
