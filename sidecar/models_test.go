package sidecar

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
)

// tritonServer answers as a Triton does whose models are loaded and unloaded by
// order: a request of one that is not loaded fails.
type tritonServer struct {
	mu     sync.Mutex
	states map[string]string
	moves  []string
	broken string // why a load fails
	// misbehave, where it is there and true, has answered instead.
	misbehave func(w http.ResponseWriter, r *http.Request, verb, model string) bool
}

func (s *tritonServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rest, verb := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:], ""
	model := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/v2/repository"), "/v2")
	model, verb, _ = strings.Cut(strings.TrimPrefix(model, "/models/"), "/")
	s.mu.Lock()
	misbehave := s.misbehave
	s.mu.Unlock()
	if misbehave != nil && misbehave(w, r, verb, model) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case rest == "metrics":
		_, _ = io.WriteString(w, "nv_pinned_memory_pool_total_bytes 0\n")
	case rest == "index":
		type entry struct{ Name, Version, State string }
		var all []entry
		for name, state := range s.states {
			all = append(all, entry{name, "1", state})
		}
		slices.SortFunc(all, func(a, b entry) int { return strings.Compare(a.Name, b.Name) })
		_ = json.NewEncoder(w).Encode(all)
	case verb == "load" && s.broken != "":
		http.Error(w, fmt.Sprintf(`{"error":%q}`, s.broken), http.StatusInternalServerError)
	case verb == "load":
		s.states[model], s.moves = "READY", append(s.moves, "load "+model)
	case verb == "unload":
		s.states[model], s.moves = "UNAVAILABLE", append(s.moves, "unload "+model)
	case verb == "infer" && s.states[model] != "READY":
		http.Error(w, fmt.Sprintf(`{"error":"Request for unknown model: '%s' has no available versions"}`, model), http.StatusNotFound)
	case verb == "infer":
		_, _ = io.WriteString(w, `{"outputs":[{"name":"text_output","datatype":"BYTES","shape":[1],"data":["hi"]}]}`)
	default:
		http.NotFound(w, r)
	}
}

func (s *tritonServer) moved() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.moves)
}

func (s *tritonServer) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// infer asks a model through the sidecar.
func (r *rig) infer(model string) (status int, body string) {
	r.t.Helper()
	resp, err := r.client.Post(r.base+"/v2/models/"+model+"/infer", "application/json", strings.NewReader(`{"inputs":[]}`))
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// tritonElastic is what both models and training share: little, since the fake trainer
// touches all that it gets.
const tritonElastic = 128 * size.MiB

// newTritonRig has two models: a takes half of what is elastic, b an eighth. A fake
// trainer that gets little of the processor is not taken for a dead one.
func newTritonRig(t *testing.T) (*rig, *tritonServer) {
	t.Helper()
	return newTritonRigWith(t, func(*config.File) {})
}

func newTritonRigWith(t *testing.T, change func(*config.File)) (*rig, *tritonServer) {
	t.Helper()
	stub := &tritonServer{states: map[string]string{"a": "READY", "b": "READY"}}
	server := httptest.NewServer(stub)
	t.Cleanup(server.Close)
	return newRig(t, func(f *config.File) {
		f.Engines = []config.Engine{{
			Name: "main", Kind: engine.KindTriton, URL: server.URL, MetricsURL: server.URL, PID: startIdle(t), Resident: rigResident, Devices: []string{"host0"},
			Idle: 300 * time.Millisecond, Models: []config.Model{{Name: "a", Bytes: tritonElastic / 2}, {Name: "b", Bytes: tritonElastic / 8}},
		}}
		f.Devices[0].Capacity -= rigElastic - tritonElastic
		f.Trainers.Heartbeat, f.Trainers.Lease = time.Minute, time.Hour
		change(f)
	}), stub
}

// untilLent waits until training is granted what it cannot have while a model is there.
func (r *rig) untilLent() {
	r.t.Helper()
	r.until("training has the models' bytes", func() bool {
		st := r.state()
		return len(st.Ledger.Trainers) == 1 && st.Ledger.Trainers[0].Budget >= tritonElastic*15/16
	})
}

func TestTritonsModelsAreLentInALullAndLoadedForTheirRequests(t *testing.T) {
	r, stub := newTritonRig(t)
	startFakeTrainer(t, r.socket, "honest")
	r.untilLent()
	if got := stub.moved(); len(got) != 2 || !slices.Contains(got, "unload a") || !slices.Contains(got, "unload b") {
		t.Fatalf("before a request: got %q, want both unloaded", got)
	}
	stub.set(func() { stub.moves = nil })
	if status, body := r.infer("a"); status != http.StatusOK {
		t.Errorf("got %d %s, want an answer: its request waits until it is loaded", status, body)
	}
	if got := stub.moved(); len(got) == 0 || got[0] != "load a" || slices.Contains(got, "load b") {
		t.Errorf("got %q, want only the model that was asked for loaded", got)
	}
	r.untilLent() // again
	if status, body := r.infer("c"); status != http.StatusNotFound || !strings.Contains(body, "unknown model: 'c'") {
		t.Errorf("a model that Lull does not know: got %d %s, want the server's own word", status, body)
	}
	var note string
	for _, e := range r.state().Engines {
		if e.Name == "main" {
			note = e.Note
		}
	}
	if note != modelsNote {
		t.Errorf("the server's note: got %q, want %q", note, modelsNote)
	}
	if p := r.state().Problems; len(p) > 0 {
		t.Errorf("problems %v, want none", p)
	}
}

func TestTritonsModelThatDoesNotLoadIsTheServersToSay(t *testing.T) {
	r, stub := newTritonRig(t)
	startFakeTrainer(t, r.socket, "honest")
	r.untilLent()
	stub.set(func() { stub.broken = "failed to load 'a', no version is available" })
	if status, body := r.infer("a"); status != http.StatusNotFound || !strings.Contains(body, "has no available versions") {
		t.Errorf("got %d %s, want the server's own refusal", status, body)
	}
	r.until("the problem is said", func() bool {
		return slices.ContainsFunc(r.state().Problems, func(p string) bool {
			return strings.Contains(p, "engines main/a bound") && strings.Contains(p, "its model did not load") && strings.Contains(p, "no version is available")
		})
	})
	if status, body := r.infer("b"); status != http.StatusNotFound {
		t.Errorf("the other model, which does not load either: got %d %s, want the same", status, body)
	}
	r.untilLent() // nothing is kept for it
}

func TestModelHeavierThanItsBytesIsSaid(t *testing.T) {
	e := &engineDriver{}
	for _, c := range []struct {
		held, before, after size.Bytes
		said                bool
	}{
		{size.GiB, 4 * size.GiB, 5 * size.GiB, false},
		{size.GiB, 4 * size.GiB, 5*size.GiB + 40*size.MiB, false},
		{size.GiB, 4 * size.GiB, 5*size.GiB + 60*size.MiB, true},
		{size.GiB, 0, 5 * size.GiB, false},     // nobody could say before
		{0, 4 * size.GiB, 6 * size.GiB, false}, // an unload
	} {
		got := e.heavier(engine.Sample{Held: c.held}, c.before, c.after)
		if (got != "") != c.said || c.said && !strings.Contains(got, "grew by 1.1GiB when it was loaded, and its bytes in lull.yaml are 1.0GiB") {
			t.Errorf("%v held, from %v to %v: got %q", c.held, c.before, c.after, got)
		}
	}
}

func TestRequestsStandInTheLedgerByTheirModel(t *testing.T) {
	l := newLedgers(config.File{Engines: []config.Engine{{Name: "t", Models: []config.Model{{Name: "a", Bytes: 1}}, Await: time.Second}, {Name: "v"}}})
	for _, c := range []struct{ engine, model, want string }{{"t", "a", "t/a"}, {"t", "b", "t"}, {"t", "", "t"}, {"v", "a", "v"}, {"none", "a", "none"}} {
		if got := l.of(c.engine, c.model); string(got.id) != c.want || (got.await > 0) != (c.want == "t/a") {
			t.Errorf("%s of %s: got %+v, want %s", c.model, c.engine, got, c.want)
		}
	}
}

// TestLoopThatDoesNotAnswerDelaysNoRequestOfAModel: only one that the core holds waits
// for its model.
func TestLoopThatDoesNotAnswerDelaysNoRequestOfAModel(t *testing.T) {
	l := &loop{ctx: t.Context(), clock: time.Now, inputs: make(chan input, 1), requests: newRequests()}
	add := func(id handover.RequestID) *request { return l.requests.add(id, "t/a", 0) }
	limit, stop := context.WithCancel(t.Context())
	stop()
	if got, _ := add("r1").untilParked(t.Context(), limit, time.Hour); got != limit {
		t.Error("nobody said a word: got another limit, want the first one")
	}
	limit, stop = context.WithCancel(t.Context())
	defer stop()
	told := add("r2")
	l.requests.resolve("r2", verdict{forward: true})
	if got, _ := told.untilParked(t.Context(), limit, time.Hour); got != limit || len(told.verdict) != 1 {
		t.Error("told to go: got another limit or no word, want the first limit and the word")
	}
	held := add("r3")
	l.requests.park("r3")
	l.requests.park("r3") // at another engine
	l.requests.park("r9") // nobody knows it
	got, end := held.untilParked(t.Context(), limit, time.Hour)
	defer end()
	if until, ok := got.Deadline(); !ok || time.Until(until) < 59*time.Minute {
		t.Errorf("held: got a limit of %v, want an hour", until)
	}
}
