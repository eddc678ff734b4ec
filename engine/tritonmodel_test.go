package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/lull-project/lull/size"
)

// repository is a Triton's model repository, with the answers of a running 2.51.
type repository struct {
	*httptest.Server
	mu     sync.Mutex
	states map[string]string // by model
	moved  []string          // what was loaded and unloaded
	slow   int               // how many looks an unload takes
	reads  int
	fail   map[string]string // path to "status body"
	looked func()
}

func newRepository(t *testing.T, states map[string]string) *repository {
	r := &repository{states: states, fail: map[string]string{}}
	r.Server = httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(r.Close)
	return r
}

func (r *repository) serve(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if how, ok := r.fail[req.URL.Path]; ok {
		code, body, _ := strings.Cut(how, " ")
		http.Error(w, body, must(strconv.Atoi(code)))
		return
	}
	if req.Method != http.MethodPost {
		http.NotFound(w, req)
		return
	}
	if req.URL.Path == "/v2/repository/index" {
		r.index(w)
		return
	}
	model, verb, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/v2/repository/models/"), "/")
	r.moved = append(r.moved, verb+" "+model)
	switch state, known := r.states[model]; {
	case verb == "load" && !known:
		http.Error(w, fmt.Sprintf(`{"error":"failed to load '%s', failed to poll from model repository"}`, model), http.StatusInternalServerError)
	case verb == "load":
		r.states[model] = tritonReady
	case verb == "unload" && state == tritonReady:
		r.states[model] = tritonUnloading
		r.reads = r.slow
	}
}

// index also ends unloads that have been looked at often enough.
func (r *repository) index(w http.ResponseWriter) {
	type entry struct {
		Name    string `json:"name"`
		Version string `json:"version,omitempty"`
		State   string `json:"state,omitempty"`
		Reason  string `json:"reason,omitempty"`
	}
	all := []entry{}
	for name, state := range r.states {
		if state == tritonUnloading {
			if r.reads--; r.reads < 0 {
				state = "UNAVAILABLE"
				r.states[name] = state
			}
		}
		e := entry{Name: name, Version: "1", State: state}
		if state == "UNAVAILABLE" {
			e.Reason = "unloaded"
		}
		if state == "" { // never loaded
			e.Version = ""
		}
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b entry) int { return strings.Compare(a.Name, b.Name) })
	_ = json.NewEncoder(w).Encode(all)
	if r.looked != nil {
		r.looked()
	}
}

func (r *repository) moves() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	got := r.moved
	r.moved = nil
	return got
}

func (r *repository) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

const llmBytes = 512 * size.MiB

func openModel(t *testing.T, r *repository, name string) Bounder {
	t.Helper()
	e, ok := open(t, Config{Kind: KindTriton, URL: r.URL, Model: &Model{Name: name, Bytes: llmBytes}}).(Bounder)
	if !ok {
		t.Fatal("got no Bounder, want one")
	}
	return e
}

func TestTritonModelGoesWholeAndComesBack(t *testing.T) {
	r := newRepository(t, map[string]string{"llm": tritonReady, "other": tritonReady})
	e, other := openModel(t, r, "llm"), openModel(t, r, "other")
	if c := e.Capabilities(); !c.Whole || !c.Bound || !c.Refuses || c.Static || c.Kind != KindTriton {
		t.Errorf("capabilities: got %+v, want a bound of all or nothing, and requests that fail without it", c)
	}
	all := Sample{At: testTime, UsageFrac: -1, Pool: llmBytes, Held: llmBytes, Bound: llmBytes, Evictable: llmBytes}
	if got, err := e.Observe(t.Context()); err != nil || got != all {
		t.Fatalf("loaded: got %+v, %v\nwant %+v", got, err, all)
	}
	want := Sample{At: testTime, UsageFrac: -1, Pool: llmBytes, BoundEpoch: 5}
	if got, err := e.SetBound(t.Context(), 5, 0); err != nil || got != want {
		t.Fatalf("after the bound of 0: got %+v, %v\nwant %+v", got, err, want)
	}
	if got, err := other.Observe(t.Context()); err != nil || got != all {
		t.Errorf("the other model: got %+v, %v, want it as it was", got, err)
	}
	all.BoundEpoch = 6
	if got, err := e.SetBound(t.Context(), 6, size.MiB); err != nil || got != all {
		t.Fatalf("after any other bound: got %+v, %v\nwant %+v", got, err, all)
	}
	if got, want := r.moves(), []string{"unload llm", "load llm"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := e.SetBound(t.Context(), 4, 0); err == nil || !strings.Contains(err.Error(), "stale epoch") || r.moves() != nil {
		t.Errorf("older epoch: got %v, want it refused and nothing moved", err)
	}
}

// TestTritonModelThatIsLoadedIsNotLoadedAgain: a second load would take its bytes
// twice, and a second unload ends nothing.
func TestTritonModelThatIsLoadedIsNotLoadedAgain(t *testing.T) {
	r := newRepository(t, map[string]string{"llm": tritonReady})
	e := openModel(t, r, "llm")
	for epoch, b := range []size.Bytes{llmBytes, llmBytes, 0, 0} {
		if _, err := e.SetBound(t.Context(), uint64(epoch+1), b); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := r.moves(), []string{"unload llm"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestTritonModelThatAlreadyComesOrGoesIsWaitedFor: by an order that a sidecar gave
// before it was started again, or by somebody else's.
func TestTritonModelThatAlreadyComesOrGoesIsWaitedFor(t *testing.T) {
	for _, c := range []struct {
		comes, becomes string
		moves          []string
	}{{tritonLoading, tritonReady, nil}, {tritonUnloading, "UNAVAILABLE", []string{"load llm"}}, {tritonLoading, "UNAVAILABLE", []string{"load llm"}}} {
		r := newRepository(t, map[string]string{"llm": c.comes})
		r.reads = 1 << 30
		e := openModel(t, r, "llm")
		looks := 0
		r.set(func() {
			r.looked = func() {
				if looks++; looks == 5 && len(r.moved) == 0 {
					r.states["llm"] = c.becomes
				}
			}
		})
		s, err := e.SetBound(t.Context(), 1, llmBytes)
		if got := r.moves(); err != nil || s.Held != llmBytes || s.BoundEpoch != 1 || looks < 5 || !slices.Equal(got, c.moves) {
			t.Errorf("%s that becomes %s: got %+v, %v after %d looks and %q, want it there after %q", c.comes, c.becomes, s, err, looks, got, c.moves)
		}
	}
	r := newRepository(t, map[string]string{"llm": tritonLoading})
	ctx, stop := context.WithCancel(t.Context())
	e, looks := openModel(t, r, "llm"), 0
	r.set(func() {
		r.looked = func() {
			if looks++; looks == 3 {
				stop()
			}
		}
	})
	_, err := e.SetBound(ctx, 1, llmBytes)
	if err == nil || !strings.HasSuffix(err.Error(), "its model did not load, it is still LOADING: context canceled") || len(r.moves()) > 0 {
		t.Errorf("one that loads for ever: got %v, want that it is still LOADING", err)
	}
}

func TestTritonModelHoldsItsBytesUntilItsUnloadIsDone(t *testing.T) {
	r := newRepository(t, map[string]string{"llm": tritonReady})
	r.slow = 3
	e := openModel(t, r, "llm")
	if _, err := e.SetBound(t.Context(), 1, llmBytes); err != nil {
		t.Fatal(err)
	}
	var during []Sample
	r.looked = func() {
		if r.states["llm"] != tritonUnloading || len(during) > 0 {
			return
		}
		during = append(during, Sample{})
		r.mu.Unlock() // for the reading within this one
		defer r.mu.Lock()
		s, err := e.Observe(t.Context())
		if err != nil {
			t.Error(err)
		}
		during[0] = s
	}
	got, err := e.SetBound(t.Context(), 2, 0)
	if err != nil || got.Held != 0 || got.BoundEpoch != 2 {
		t.Errorf("got %+v, %v, want it gone", got, err)
	}
	if len(during) != 1 || during[0].Held != llmBytes || during[0].BoundEpoch != 1 || during[0].Note != "model llm is UNLOADING" {
		t.Errorf("while it is unloaded: got %+v, want all held by the order before", during)
	}
}

func TestTritonModelThatDoesNotGoCountsAsHeld(t *testing.T) {
	r := newRepository(t, map[string]string{"llm": tritonReady})
	r.slow = 1 << 30
	ctx, cancel := context.WithCancel(t.Context())
	looks := 0
	r.looked = func() {
		if looks++; looks == 4 {
			cancel()
		}
	}
	e := openModel(t, r, "llm")
	_, err := e.SetBound(ctx, 1, 0)
	wantError(t, err, "set bound epoch=1 to 0B: engine main: its model was not unloaded, it is still UNLOADING; its bytes count as held")
	if got, err := e.Observe(t.Context()); err != nil || got.Held != llmBytes || got.BoundEpoch != 0 {
		t.Errorf("got %+v, %v, want it held", got, err)
	}
}

func TestTritonModelSaysWhatIsWrong(t *testing.T) {
	const control = `503 {"error":"explicit model load / unload is not allowed if polling is enabled"}`
	for name, c := range map[string]struct {
		model, state, path, fails string
		bound                     size.Bytes
		want                      string
	}{
		"does not load":       {"llm", "UNAVAILABLE", "/v2/repository/models/llm/load", `500 {"error":"failed to load 'llm', no version is available: out of memory"}`, llmBytes, `its model did not load: engine main: post URL/v2/repository/models/llm/load: got 500 "failed to load 'llm', no version is available: out of memory", want 200`},
		"loads by itself":     {"llm", tritonReady, "/v2/repository/models/llm/unload", control, 0, `want 200; start Triton with --model-control-mode=explicit`},
		"loads by itself too": {"llm", "", "/v2/repository/models/llm/load", control, llmBytes, `want 200; start Triton with --model-control-mode=explicit`},
		"is not there":        {"lm", "", "", "", 0, `engine main: URL/v2/repository/index: got no model "lm" in its repository, want one of ["llm"]`},
		"is restricted":       {"llm", "", "/v2/repository/index", `403 {"error":"This API is restricted, expecting header 'triton-access-token'"}`, 0, `got 403 "This API is restricted, expecting header 'triton-access-token'", want 200; let Lull use the repository's API`},
		"is none":             {"llm", "", "/v2/repository/index", `404 <html>`, 0, `got 404`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRepository(t, map[string]string{"llm": c.state})
			if c.path != "" {
				r.fail[c.path] = c.fails
			}
			_, err := openModel(t, r, c.model).SetBound(t.Context(), 3, c.bound)
			wantError(t, err, "set bound epoch=3 to", strings.ReplaceAll(c.want, "URL", r.URL))
		})
	}
}

func TestTritonServerThatRestartedHasForgottenItsOrders(t *testing.T) {
	r := newRepository(t, map[string]string{"llm": tritonReady})
	e := openModel(t, r, "llm")
	if _, err := e.SetBound(t.Context(), 7, llmBytes); err != nil {
		t.Fatal(err)
	}
	r.set(func() { r.states["llm"] = "" })
	if got, err := e.Observe(t.Context()); err != nil || got.Held != 0 || got.BoundEpoch != 0 {
		t.Errorf("none is loaded: got %+v, %v, want nothing held by nobody's order", got, err)
	}
	if _, err := e.SetBound(t.Context(), 8, 0); err != nil {
		t.Fatal(err)
	}
	r.set(func() { r.states["llm"] = tritonReady })
	if got, err := e.Observe(t.Context()); err != nil || got.Held != llmBytes || got.BoundEpoch != 0 {
		t.Errorf("all are loaded: got %+v, %v, want its bytes held by nobody's order", got, err)
	}
}

func TestTritonModelThatComesOrGoesHoldsItsBytes(t *testing.T) {
	for state, held := range map[string]size.Bytes{"": 0, "UNAVAILABLE": 0, tritonLoading: llmBytes, tritonReady: llmBytes} {
		e := openModel(t, newRepository(t, map[string]string{"llm": state}), "llm")
		if got, err := e.Observe(t.Context()); err != nil || got.Held != held {
			t.Errorf("%q: got %+v, %v, want %v held", state, got, err, held)
		}
	}
}

// TestTritonLeavesTheBytesOfItsModelsToThem: what its process has beyond them is the
// server's own.
func TestTritonLeavesTheBytesOfItsModelsToThem(t *testing.T) {
	r := newRepository(t, map[string]string{"a": tritonReady, "b": tritonUnloading, "c": "UNAVAILABLE", "d": ""})
	r.slow = 1 << 30
	r.set(func() { r.reads = 1 << 30 })
	models := []Model{{"a", size.MiB}, {"b", 2 * size.MiB}, {"c", 4 * size.MiB}, {"d", 8 * size.MiB}}
	meter := serve(t, routes{"/metrics": read(t, "triton-tensorrtllm.metrics")})
	e := open(t, Config{Kind: KindTriton, URL: r.URL, MetricsURL: meter, BytesPerToken: size.KiB, Models: models})
	got, err := e.Observe(t.Context())
	if err != nil || got.Held != 3*size.MiB || got.Pool != 0 || got.Bound != 0 || got.Needed != 0 || got.Running != 4 {
		t.Errorf("got %+v, %v, want what is loaded or on its way held, and no pool of its own", got, err)
	}
	_, err = open(t, Config{Kind: KindTriton, URL: r.URL, MetricsURL: meter, Models: []Model{{"nope", 1}}}).Observe(t.Context())
	wantError(t, err, `got no model "nope" in its repository, want one of ["a" "b" "c" "d"]`)
}
