package engine

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lull-project/lull/size"
)

const (
	llamaPropsBody = `{"default_generation_settings":{"params":{},"n_ctx":2048},"total_slots":2}`
	llamaSlotsBody = `[{"id":0,"n_ctx":2048,"is_processing":false},{"id":1,"n_ctx":2048,"is_processing":true,"n_prompt_tokens":1024}]`
)

func TestLlamaCPPIsAStaticPoolOfSlots(t *testing.T) {
	metrics := read(t, "llamacpp.metrics")
	e := open(t, Config{Kind: KindLlamaCPP, BytesPerToken: size.KiB, URL: serve(t, routes{"/props": llamaPropsBody, "/slots": llamaSlotsBody, "/metrics": metrics})})
	got, err := e.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := Sample{
		At: testTime, Pool: 4 * size.MiB, PoolTokens: 4096, Held: 4 * size.MiB, Bound: 4 * size.MiB, Needed: size.MiB,
		UsageFrac: 0.25, BytesPerToken: size.KiB, MaxModelLen: 2048, // the metrics were read while nothing ran
	}
	if got != want {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if c := e.Capabilities(); !c.Static || c.Kind != KindLlamaCPP {
		t.Errorf("got %+v, want a static llamacpp", c)
	}
}

func TestLlamaCPPWithoutSlotsAndMetricsStillTellsItsContext(t *testing.T) {
	off := "501 {\"error\":{\"message\":\"This server does not support metrics endpoint.\"}}"
	e := open(t, Config{Kind: KindLlamaCPP, URL: serve(t, routes{"/props": llamaPropsBody, "/slots": off, "/metrics": off})})
	got, err := e.Observe(t.Context())
	if err != nil || got.UsageFrac != -1 || got.MaxModelLen != 2048 {
		t.Errorf("got %+v, %v, want unknown usage and a context of 2048", got, err)
	}
	e = open(t, Config{Kind: KindLlamaCPP, URL: serve(t, routes{"/props": llamaPropsBody, "/slots": llamaSlotsBody, "/metrics": off})})
	if got, err := e.Observe(t.Context()); err != nil || got.Running != 1 {
		t.Errorf("got %+v, %v, want the running request from the slots", got, err)
	}
}

func TestLlamaCPPSaysWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		r    routes
		want string
	}{
		"no context":   {routes{"/props": `{"total_slots":0}`}, "/props: got total_slots 0 and n_ctx 0, want llama.cpp's own numbers above 0"},
		"overflow":     {routes{"/props": `{"total_slots":4294967296,"default_generation_settings":{"n_ctx":4294967296}}`}, "/props: got total_slots 4294967296 and n_ctx 4294967296, want"},
		"props":        {routes{"/props": `<html>`}, `/props: got "<html>", want JSON`},
		"slots":        {routes{"/props": llamaPropsBody, "/slots": `{}`}, `/slots: got "{}", want JSON`},
		"metrics":      {routes{"/props": llamaPropsBody, "/metrics": "x 1\n"}, "/metrics: got no llamacpp:requests_processing"},
		"half metrics": {routes{"/props": llamaPropsBody, "/metrics": "llamacpp:requests_processing 1\n"}, "/metrics: got no llamacpp:requests_deferred"},
		"loading":      {routes{"/props": `503 {"error":{"message":"Loading model"}}`}, "got 503"},
		"slots 500":    {routes{"/props": llamaPropsBody, "/slots": "500 x"}, `/slots: got 500 "x", want 200`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := open(t, Config{Kind: KindLlamaCPP, URL: serve(t, c.r)}).Observe(t.Context())
			wantError(t, err, "engine main: ", c.want)
		})
	}
}

func TestLlamaCPPIsLeftQuietSoThatItNoticesCallersThatLeft(t *testing.T) {
	var tasks atomic.Int64
	files := routes{"/props": llamaPropsBody, "/slots": llamaSlotsBody, "/metrics": read(t, "llamacpp.metrics")}
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/props" {
			tasks.Add(1)
		}
		files.ServeHTTP(w, r)
	}))
	now := testTime
	e, err := Open(t.Context(), Config{Name: "main", Kind: KindLlamaCPP, URL: url, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = Close(e) })
	for _, c := range []struct {
		at    time.Duration
		tasks int64
	}{{0, 2}, {250 * time.Millisecond, 2}, {2999 * time.Millisecond, 2}, {3 * time.Second, 4}, {3250 * time.Millisecond, 4}} {
		now = testTime.Add(c.at)
		s, err := e.Observe(t.Context())
		if err != nil || s.UsageFrac != 0.25 || !s.At.Equal(now) {
			t.Errorf("at %v: got %+v, %v, want the usage of the latest slots", c.at, s, err)
		}
		if tasks.Load() != c.tasks {
			t.Errorf("at %v: got %d readings that are tasks, want %d", c.at, tasks.Load(), c.tasks)
		}
	}
}
