package telemetry

import (
	"net/http/httptest"
	"strings"
	"testing"
)

func TestMemoryIsShownByOwnerAndCategory(t *testing.T) {
	m := NewMetrics()
	m.ShowOwners(func() []OwnerMemory {
		return []OwnerMemory{{Device: "d0", Owner: "gpt/0", Bytes: map[string]int64{"weights": 5, "activations": 7}, Reclaimable: map[string]int64{"5ms": 3}}}
	})
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`lull_owner_memory_bytes{category="weights",device="d0",owner="gpt/0"} 5`,
		`lull_owner_memory_bytes{category="activations",device="d0",owner="gpt/0"} 7`,
		`lull_owner_reclaimable_bytes{device="d0",owner="gpt/0",within="5ms"} 3`,
	} {
		if !strings.Contains(w.Body.String(), want+"\n") {
			t.Errorf("not shown: %s", want)
		}
	}
}

func TestForgottenMemoryIsShownNoMore(t *testing.T) {
	m := NewMetrics()
	m.Memory("gpu0", "all", "used", 5)
	m.Memory("gpu0", "all", "free", 6)
	m.ForgetMemory("gpu0", "all", "used")
	m.ForgetMemory("gpu0", "all", "total") // never was
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if text := w.Body.String(); strings.Contains(text, `term="used"`) || !strings.Contains(text, `lull_memory_bytes{device="gpu0",owner="all",term="free"} 6`) {
		t.Errorf("got %s", text)
	}
}
