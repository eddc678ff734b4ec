package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// mib is a MiB, for what JSON tells in bytes.
const mib = 1 << 20

// rig is an elastic engine, the sidecar and a real training job on one device.
type rig struct {
	*sidecar
	engine, trainer *process
	port            int
}

const rigConfig = `listen: "127.0.0.1:0"
state_dir: %[1]s
admin: {listen: "127.0.0.1:0"}
devices: [{id: host0, kind: host, capacity: 460MiB, headroom: 32MiB}]
engines: [{name: main, kind: emulator, url: "http://127.0.0.1:%[2]d", devices: [host0]}]
trainers: {socket: %[1]s/lull.sock}
`

// startRig starts the three, and waits until training has grown into what the
// engine does not need: beside resident, floor and headroom there is room for
// some 280 MiB, so that a trainer may come while the engine has its whole pool,
// and a burst of eight needs 200.
func startRig(t *testing.T, script ...string) *rig {
	t.Helper()
	r := &rig{port: freePort()}
	r.startEngine(t)
	r.share(t, func(dir string) []byte { return fmt.Appendf(nil, rigConfig, dir, r.port) }, script...)
	r.waitFor(t, "training grows into idle KV memory", 3*time.Minute, func(st state) bool {
		return len(st.Ledger.Trainers) == 1 && st.Ledger.Trainers[0].Held > 64*mib && st.Ledger.Engines[0].Bound < 144*mib && trained(st) > 0
	})
	return r
}

// share starts the sidecar with a config, given its folder, and the trainer.
func (r *rig) share(t *testing.T, config func(dir string) []byte, script ...string) {
	t.Helper()
	py := python(t, "LULL_TEST_PYTHON", "base")
	dir := t.TempDir()
	path := filepath.Join(dir, "lull.yaml")
	if err := os.WriteFile(path, config(dir), 0o600); err != nil {
		t.Fatal(err)
	}
	p, line := announced(t, "rig", "serve", "--config", path)
	r.sidecar = &sidecar{p: p, url: "http://" + line["listening"].(string), adminURL: "http://" + line["admin"].(string), socket: line["socket"].(string)}
	env := []string{"PYTHONPATH=trainer/python", "LULL_SOCKET=" + r.socket, "LULL_JOB=e2e", "LULL_DEVICE=host0", "LULL_BUDGET=16MiB", "OMP_NUM_THREADS=1"}
	var err error
	if r.trainer, err = start("trainer", env, nil, append([]string{py, "-m", "lull.run"}, script...)...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.trainer.stop)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("trainer:\n%s\nsidecar:\n%s", r.trainer.tail(), r.p.tail())
		}
	})
}

// startEngine starts an engine whose pool is 256 MiB, 64 KiB a token, on the
// rig's port.
func (r *rig) startEngine(t *testing.T) {
	t.Helper()
	r.engine, _ = announced(t, "emulator", "emulate", "--listen", "127.0.0.1:"+strconv.Itoa(r.port), "--model", "m", "--pool", "256MiB", "--bound", "32MiB",
		"--resident", "64MiB", "--kv-bytes-per-token", "64KiB", "--block-tokens", "32", "--max-model-len", "2048")
}

// burst sends n requests of some 25 MiB of KV at once, and gives those that were
// not answered whole.
func (r *rig) burst(n int) (wrong []string) {
	body := `{"model":"m","max_tokens":48,"stream":true,"prompt":"` + strings.Repeat("word ", 350) + `"}`
	var mu sync.Mutex
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			got, err := fetch(http.MethodPost, r.url+"/v1/completions", body)
			if err == nil && got.status == http.StatusOK && strings.HasSuffix(strings.TrimSpace(string(got.body)), "data: [DONE]") {
				return
			}
			mu.Lock()
			wrong = append(wrong, fmt.Sprintf("%d %.200s %v", got.status, got.body, err))
			mu.Unlock()
		})
	}
	all.Wait()
	return wrong
}

// ledger is the part of the core's state that is read.
type ledger struct {
	Devices []struct {
		Capacity       int64  `json:"capacity_bytes"`
		TrainerCharged int64  `json:"trainer_charged_bytes"`
		Floor          int64  `json:"floor_bytes"`
		Budget         int64  `json:"budget_bytes"`
		Free           int64  `json:"free_bytes"`
		Over           int64  `json:"over_bytes"`
		WorstOver      int64  `json:"worst_over_bytes"`
		Breaches       uint64 `json:"breaches"`
	} `json:"devices"`
	Engines []struct {
		Bound int64 `json:"kv_bound_confirmed_bytes"`
		Held  int64 `json:"kv_held_bytes"`
		Down  bool  `json:"down"`
	} `json:"engines"`
	Trainers []struct {
		Budget int64 `json:"budget_bytes"`
		Held   int64 `json:"held_bytes"`
		Gone   bool  `json:"gone"`
	} `json:"trainers"`
	Owed []struct {
		Shrink bool `json:"shrink"`
	} `json:"owed"`
}

// roomForStart says that training has given way to a dead engine's start: all
// that the start needs is free, or training has nothing left to give.
func (l ledger) roomForStart() bool {
	return l.Devices[0].Over == 0 || l.Trainers[0].Budget == 0 && l.Trainers[0].Held == 0
}

// shrink is one line of /api/v1/handovers.
type shrink struct {
	Direction, How, Result string
	Freed                  int64 `json:"freed_bytes"`
	TookUS                 int64 `json:"took_us"`
}

// shrinks are the handovers that freed memory and were confirmed.
func (s *sidecar) shrinks(t *testing.T) (freed []shrink) {
	t.Helper()
	text := get(s.adminURL + "/api/v1/handovers")
	var answer struct{ Handovers []shrink }
	if err := json.Unmarshal([]byte(text), &answer); err != nil && json.Unmarshal([]byte(text), &answer.Handovers) != nil {
		t.Fatalf("/api/v1/handovers: got %.300q: %v", text, err)
	}
	for _, h := range answer.Handovers {
		if h.Direction == "shrink" && h.Freed > 0 {
			freed = append(freed, h)
		}
	}
	return freed
}
