package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// sidecar is a running `lull serve`.
type sidecar struct {
	p             *process
	url, adminURL string
	socket        string
}

const sidecarConfig = `listen: "127.0.0.1:0"
state_dir: %[1]s
admin: {listen: "127.0.0.1:0"}
devices: [{id: host0, kind: host, capacity: 6GiB, headroom: 64MiB}]
engines: [{name: main, kind: auto, url: "%[2]s", devices: [host0], bytes_per_token: %[3]dB}]
trainers: {socket: %[1]s/lull.sock}
`

// serve starts `lull serve` in front of a server and waits for its ready line.
func serve(t *testing.T, s *server) *sidecar {
	t.Helper()
	upstream := s.up(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "lull.yaml")
	if err := os.WriteFile(path, fmt.Appendf(nil, sidecarConfig, dir, upstream, s.bytesPerToken), 0o600); err != nil {
		t.Fatal(err)
	}
	p, line := announced(t, "lull", "serve", "--config", path)
	return &sidecar{p: p, url: "http://" + line["listening"].(string), adminURL: "http://" + line["admin"].(string), socket: line["socket"].(string)}
}

// state is the part of /api/v1/state that is read.
type state struct {
	Lending bool `json:"lending"`
	Engines []struct {
		Name, Kind, Note, Problem string
		PID                       int
		Static                    bool
		Sample                    *struct {
			Pool  int64 `json:"pool_bytes"`
			Held  int64 `json:"held_bytes"`
			Bound int64 `json:"bound_bytes"`
		}
	} `json:"engines"`
	Trainers []struct {
		ID        string         `json:"id"`
		Connected bool           `json:"connected"`
		Floor     int64          `json:"floor_bytes"`
		Report    map[string]any `json:"report"`
	} `json:"trainers"`
	Live   int    `json:"requests_live"`
	Ledger ledger `json:"ledger"`
}

func (s *sidecar) state(t *testing.T) (st state) {
	t.Helper()
	text := get(s.adminURL + "/api/v1/state")
	if err := json.Unmarshal([]byte(text), &st); err != nil {
		t.Fatalf("/api/v1/state: got %q: %v", text, err)
	}
	return st
}

// waitFor polls the sidecar's state until it is as wanted.
func (s *sidecar) waitFor(t *testing.T, what string, limit time.Duration, ok func(state) bool) state {
	t.Helper()
	if err := until(s.p, limit, 100*time.Millisecond, func() bool { return ok(s.state(t)) }); err != nil {
		t.Fatalf("%s: %v; state is %s\n%s", what, err, get(s.adminURL+"/api/v1/state"), s.p.tail())
	}
	return s.state(t)
}

// train starts a real training job under the sidecar and waits until it has
// reported samples.
func (s *sidecar) train(t *testing.T) {
	t.Helper()
	py := python(t, "LULL_TEST_PYTHON", "base")
	env := []string{"PYTHONPATH=trainer/python", "LULL_SOCKET=" + s.socket, "LULL_JOB=e2e", "LULL_DEVICE=host0"}
	p, err := start("trainer", env, nil, py, "-m", "lull.run", "demo/train.py", "--batch", "8")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("trainer:\n%s", p.tail())
		}
	})
	s.waitFor(t, "a trainer that reports samples", 2*time.Minute, func(st state) bool { return trained(st) > 0 })
}

// trained is the samples that the trainer has reported.
func trained(st state) float64 {
	if len(st.Trainers) != 1 || !st.Trainers[0].Connected {
		return 0
	}
	n, _ := st.Trainers[0].Report["samples"].(float64)
	return n
}
