package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const tritonConfig = `listen: "127.0.0.1:0"
state_dir: %[1]s
admin: {listen: "127.0.0.1:0"}
devices: [{id: host0, kind: host, capacity: 560MiB, headroom: 32MiB}]
engines:
  - name: triton
    kind: triton
    url: "http://127.0.0.1:%[2]d"
    metrics_url: "http://127.0.0.1:%[3]d"
    devices: [host0]
    idle: 1s
    models: [{name: large, bytes: 256MiB}, {name: small, bytes: 64MiB}]
trainers: {socket: %[1]s/lull.sock}
`

// startTriton starts a real Triton with both models loaded, or with none.
func (r *rig) startTriton(t *testing.T, python string, metrics int, how string) {
	t.Helper()
	var err error
	r.engine, err = start("triton", nil, nil, python, "scripts/triton_server.py", filepath.Join(shared.dir, "triton"),
		strconv.Itoa(r.port), strconv.Itoa(metrics), "large=192"+how, "small=16"+how)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.engine.stop)
	if err := until(r.engine, 2*time.Minute, 100*time.Millisecond, func() bool { return get(r.base()+"/v2") != "" }); err != nil {
		t.Fatalf("Triton did not start: %v\n%s", err, r.engine.tail())
	}
}

// modelState is what Triton itself says of a model.
func (r *rig) modelState(t *testing.T, model string) string {
	t.Helper()
	got, err := fetch(http.MethodPost, r.base()+"/v2/repository/index", "{}")
	if err != nil || got.status != http.StatusOK {
		t.Fatalf("index: got %d %.200s, %v", got.status, got.body, err)
	}
	_, rest, _ := strings.Cut(string(got.body), `"name":"`+model+`"`)
	entry, _, _ := strings.Cut(rest, "}")
	_, state, _ := strings.Cut(entry, `"state":"`)
	state, _, _ = strings.Cut(state, `"`)
	return state
}

// echoed asks a model through the sidecar.
func (r *rig) echoed(t *testing.T, model string) {
	t.Helper()
	if got := r.asked(t, model); got.status != http.StatusOK || !strings.Contains(string(got.body), `"data":["hello"]`) {
		t.Errorf("%s: got %d %.300s, want an answer by the model", model, got.status, got.body)
	}
}

// asked is what a request of a model gets.
func (r *rig) asked(t *testing.T, model string) raw {
	t.Helper()
	got, err := fetch(http.MethodPost, r.url+"/v2/models/"+model+"/infer", `{"inputs":[{"name":"text_input","datatype":"BYTES","shape":[1],"data":["hello"]}]}`)
	if err != nil {
		t.Fatalf("%s: %v", model, err)
	}
	return got
}

// TestARealTritonsModelsAreLentToRealTrainingAndLoadedForTheirRequests: a model that
// is not loaded refuses its requests, so each answer shows that one waited.
func TestARealTritonsModelsAreLentToRealTrainingAndLoadedForTheirRequests(t *testing.T) {
	triton := python(t, "LULL_TEST_PYTHON_TRITON", "triton")
	r := &rig{port: freePort()}
	metrics := freePort()
	r.startTriton(t, triton, metrics, ":loaded")
	r.share(t, func(dir string) []byte { return fmt.Appendf(nil, tritonConfig, dir, r.port, metrics) }, "demo/train.py", "--batch", "64")
	lent := func(st state) bool {
		return len(st.Ledger.Trainers) == 1 && len(st.Ledger.Engines) == 3 && st.Ledger.Engines[1].Bound+st.Ledger.Engines[1].Held+st.Ledger.Engines[2].Held == 0 &&
			st.Ledger.Trainers[0].Held > 160*mib && trained(st) > 0
	}
	r.waitFor(t, "both models are unloaded and training grows into their bytes", 5*time.Minute, lent)
	if got := r.modelState(t, "large"); got != "UNAVAILABLE" {
		t.Errorf("large: Triton says %q, want it unloaded", got)
	}

	t.Run("a request has its model loaded", func(t *testing.T) {
		r.echoed(t, "large")
		if got := r.modelState(t, "large"); got != "READY" {
			t.Errorf("large: Triton says %q, want it loaded", got)
		}
		if got := r.modelState(t, "small"); got == "READY" {
			t.Error("small is loaded, and nobody asked for it")
		}
		r.waitFor(t, "a shrink that freed memory is in the books: training had the model's bytes", time.Minute, func(state) bool { return len(r.shrinks(t)) > 0 })
		r.waitFor(t, "it is lent again", 5*time.Minute, lent)
		r.neverExceeded(t)
	})

	t.Run("a model that somebody unloads is loaded for its requests", func(t *testing.T) {
		r.echoed(t, "small")
		if got, err := fetch(http.MethodPost, r.base()+"/v2/repository/models/small/unload", "{}"); err != nil || got.status != http.StatusOK {
			t.Fatalf("unload: got %d %.200s, %v", got.status, got.body, err)
		}
		// Until Lull has seen it, what comes gets Triton's own answer, "no available versions".
		r.waitFor(t, "a request is answered by it", time.Minute, func(state) bool { return r.asked(t, "small").status == http.StatusOK })
		r.echoed(t, "small")
	})

	t.Run("a Triton that starts again without models serves them", func(t *testing.T) {
		r.engine.stop()
		r.waitFor(t, "it is down", time.Minute, func(st state) bool { return len(st.Ledger.Engines) == 3 && st.Ledger.Engines[1].Down })
		r.startTriton(t, triton, metrics, "")
		r.waitFor(t, "it is up", time.Minute, func(st state) bool { return !st.Ledger.Engines[0].Down && !st.Ledger.Engines[1].Down })
		r.echoed(t, "large")
	})
}
