package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/size"
)

// TestVLLMThatCannotLetItsPoolGoKeepsItAndServes: on a CPU vLLM refuses to discard
// its KV cache, after it was paused for that.
func TestVLLMThatCannotLetItsPoolGoKeepsItAndServes(t *testing.T) {
	s := servers[0]
	url := s.up(t)
	e, err := engine.Open(t.Context(), engine.Config{Name: "main", Kind: engine.KindVLLMSleep, URL: url, Pool: size.GiB})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close(e) })
	before, err := e.Observe(t.Context())
	if err != nil || before.Held != size.GiB || before.Note != "" {
		t.Fatalf("before: got %+v, %v, want its whole pool held", before, err)
	}
	_, err = e.(engine.Bounder).SetBound(t.Context(), 1, 0)
	if err == nil || !strings.Contains(err.Error(), "its pool was not released, the server goes on with it") || !strings.Contains(err.Error(), "not supported on CPU") {
		t.Errorf("got %v, want vLLM's own reason and that it goes on", err)
	}
	after, err := e.Observe(t.Context())
	if err != nil || after.Held != size.GiB {
		t.Errorf("after: got %+v, %v, want its whole pool held", after, err)
	}
	got, err := fetch(http.MethodPost, url+"/v1/completions", `{"model":"tiny","prompt":"hello","max_tokens":3}`)
	if err != nil || got.status != http.StatusOK {
		t.Errorf("a request after it: got %d %.200s, %v, want an answer", got.status, got.body, err)
	}
}
