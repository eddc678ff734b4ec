package sidecar

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/size"
)

// engines is what /api/v1/state says of them, once it says something.
func (l *lone) engines(n int) []EngineState {
	l.t.Helper()
	var st State
	l.until("the state has its engines", func() bool {
		_, _, text, err := l.call(http.MethodGet, l.admin+"/api/v1/state", "", nil)
		return err == nil && json.Unmarshal([]byte(text), &st) == nil && len(st.Engines) == n
	})
	return st.Engines
}

func TestRelayedServerStandsInTheStateWithItsKind(t *testing.T) {
	l := newLone(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/models" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(`{"data":[{"id":"m","owned_by":"somebody"}]}`))
	}), nil, nil)
	got := l.engines(1)[0]
	if got.Name != "main" || got.Kind != engine.KindOpenAI || got.Note != relayedNote || got.Problem != "" {
		t.Errorf("got %+v", got)
	}
	l.logged(`upstream is known" engine=main kind=openai`)
	if ready, text := l.readyz(); !ready || !strings.Contains(text, `"problems":[]`) {
		t.Errorf("readyz: %v %s", ready, text)
	}
}

func TestAddressWhereNoLLMServerAnswersIsSaidAndRelayed(t *testing.T) {
	l := newLone(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == chatPath {
			_, _ = w.Write([]byte("all the same"))
			return
		}
		http.NotFound(w, r)
	}), nil, nil)
	got := l.engines(1)[0]
	if !strings.Contains(got.Problem, "no LLM server at http://") {
		t.Errorf("got %+v, want it said", got)
	}
	l.logged("upstream cannot be read as an LLM server; requests are relayed all the same")
	if _, text := l.readyz(); !strings.Contains(text, "upstream main: detect kind: engine main: no LLM server at ") {
		t.Errorf("problems: %s", text)
	}
	l.chat("all the same")
}

func TestServerIsAskedAgainWhenAReloadNamesAnother(t *testing.T) {
	models := func(owner string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/v1/models":
				_, _ = w.Write([]byte(`{"data":[{"id":"m"}]}`))
			case r.URL.Path == "/api/version" && owner == "ollama":
				_, _ = w.Write([]byte(`{"version":"1"}`))
			case r.URL.Path == "/api/ps" && owner == "ollama":
				_, _ = w.Write([]byte(`{"models":[]}`))
			default:
				http.NotFound(w, r)
			}
		})
	}
	l := newLone(t, models("somebody"), nil, nil)
	l.logged(`upstream is known" engine=main kind=openai`)
	next := l.file
	next.Engines = []config.Engine{l.file.Engines[0]}
	other := httptest.NewServer(models("ollama"))
	defer other.Close()
	next.Engines[0].URL = other.URL
	if _, _, err := l.sidecar.Reload(next); err != nil {
		t.Fatal(err)
	}
	l.until("the other server is known", func() bool { return strings.Count(l.logs.String(), "upstream is known") == 2 })
}

// TestGatewayThatAnsweredBeforeItsServerIsAskedAgain: what it said then was true, and
// no longer is.
func TestGatewayThatAnsweredBeforeItsServerIsAskedAgain(t *testing.T) {
	var loaded atomic.Bool
	l := newLone(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !loaded.Load():
			w.WriteHeader(http.StatusBadGateway)
		case r.URL.Path == "/v1/models":
			_, _ = w.Write([]byte(`{"data":[{"id":"m"}]}`))
		default:
			http.NotFound(w, r)
		}
	}), nil, nil)
	if got := l.engines(1)[0]; got.Problem == "" {
		t.Fatalf("got %+v, want the gateway's answer said", got)
	}
	loaded.Store(true)
	e := l.file.Engines[0]
	r := &relayed{at: address{e.URL, e.Kind, e.TLS}, said: "what it said before"} // its next try is due
	l.sidecar.identify(t.Context(), r, e, l.file.Proxy)
	l.until("the problem is gone", func() bool { got := l.engines(1)[0]; return got.Problem == "" && got.Kind == engine.KindOpenAI })
	if !r.known {
		t.Error("want it known now")
	}
}

func TestLockedServerIsReadWithTheUpstreamsKey(t *testing.T) {
	t.Setenv("LULL_TEST_UPSTREAM_KEY", "sk-1")
	l := newLone(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer sk-1" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.URL.Path != "/v1/models" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(`{"data":[{"id":"m"}]}`))
	}), func(f *config.File) { f.Proxy.UpstreamKeyEnv = "LULL_TEST_UPSTREAM_KEY" }, nil)
	if got := l.engines(1)[0]; got.Kind != engine.KindOpenAI || got.Problem != "" {
		t.Errorf("got %+v", got)
	}
}

func TestConfigThatWantsMoreThanTheServerHasIsDoubted(t *testing.T) {
	has := engine.Sample{Pool: 640 * size.MiB}
	const rest = " is more than the server's own pool, 640.0MiB: what is above it is kept for nobody"
	for _, c := range []struct {
		engine config.Engine
		want   string
	}{
		{config.Engine{Name: "main"}, ""},
		{config.Engine{Name: "main", Pool: 640 * size.MiB, MinBound: 640 * size.MiB}, ""},
		{config.Engine{Name: "main", Pool: 641 * size.MiB}, "engines.main.pool: 641.0MiB" + rest},
		{config.Engine{Name: "main", MinBound: size.GiB}, "engines.main.min_bound: 1.0GiB" + rest},
	} {
		if got := doubtful(c.engine, has); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	if got := doubtful(config.Engine{Pool: size.GiB}, engine.Sample{}); got != "" {
		t.Errorf("a server that says no pool: got %q", got)
	}
}
