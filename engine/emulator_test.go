package engine

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/lull-project/lull/size"
)

const emulatorBody = `{"pid":42,"baseline_bytes":1024,"resident_bytes":4096,"pool_bytes":1048576,"bound_bytes":524288,"bound_epoch":4294967297,
"held_bytes":262144,"needed_bytes":131072,"short_bytes":65536,"running":3,"waiting":2,"preemptions":1,"kv_bytes_per_token":65536,"block_tokens":32,"max_model_len":4096}`

func TestEmulatorTellsItsBooks(t *testing.T) {
	e := open(t, Config{Kind: KindEmulator, URL: serve(t, routes{"/lull/state": emulatorBody})})
	got, err := e.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := Sample{
		At: testTime, PID: 42, Baseline: 1024, Resident: 4096, Pool: size.MiB, Bound: 512 * size.KiB, BoundEpoch: 1<<32 | 1,
		Held: 256 * size.KiB, Needed: 128 * size.KiB, Evictable: 128 * size.KiB, Short: 64 * size.KiB, UsageFrac: 0.125,
		Running: 3, Waiting: 2, Preemptions: 1, BytesPerToken: 64 * size.KiB, BlockTokens: 32, MaxModelLen: 4096,
	}
	if got != want {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if c := e.Capabilities(); !c.Bound || c.Static || !c.ObservePhysical {
		t.Errorf("got %+v, want an engine that takes a bound", c)
	}
}

// boundServer answers state with emulatorBody and orders with reply.
func boundServer(t *testing.T, reply func(order map[string]int64) (int, string)) Bounder {
	t.Helper()
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/lull/state" {
			_, _ = w.Write([]byte(emulatorBody))
			return
		}
		body, _ := io.ReadAll(r.Body)
		order := map[string]int64{}
		if err := json.Unmarshal(body, &order); err != nil || r.Method != http.MethodPut || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("got %s %q, want a PUT of JSON", r.Method, body)
		}
		code, answer := reply(order)
		w.WriteHeader(code)
		_, _ = w.Write([]byte(answer))
	}))
	return open(t, Config{Kind: KindEmulator, URL: url}).(Bounder)
}

func TestSetBoundAnswersWithTheBoundAndWhatWasSeenBefore(t *testing.T) {
	b := boundServer(t, func(o map[string]int64) (int, string) {
		if o["epoch"] != 9 || o["bytes"] != int64(64*size.KiB) {
			t.Errorf("got order %v, want epoch 9 and 65536 bytes", o)
		}
		return 200, `{"epoch":9,"bound_bytes":65536,"held_bytes":98304}`
	})
	if _, err := b.Observe(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := b.SetBound(t.Context(), 9, 64*size.KiB)
	if err != nil {
		t.Fatal(err)
	}
	if got.Bound != 64*size.KiB || got.BoundEpoch != 9 || got.Held != 96*size.KiB || got.Needed != 96*size.KiB || got.Evictable != 0 || got.Pool != size.MiB || got.PID != 42 {
		t.Errorf("got %+v, want the new bound over the latest observation", got)
	}
}

func TestSetBoundErrors(t *testing.T) {
	for name, c := range map[string]struct {
		code   int
		answer string
		stale  bool
		want   string
	}{
		"older epoch": {409, `{"error":"epoch 9 is older than 12"}`, true, "engine main: set bound epoch=9 to 64.0KiB: stale epoch; the engine keeps its bound"},
		"other epoch": {200, `{"epoch":8,"bound_bytes":1,"held_bytes":1}`, false, "want the same epoch with bound_bytes and held_bytes"},
		"no held":     {200, `{"epoch":9,"bound_bytes":1}`, false, "want the same epoch with bound_bytes and held_bytes"},
		"no JSON":     {200, `ok`, false, `/lull/kv_bound: got "ok", want JSON`},
		"failure":     {500, `boom`, false, `set bound epoch=9 to 64.0KiB: engine main: put http://`},
	} {
		t.Run(name, func(t *testing.T) {
			b := boundServer(t, func(map[string]int64) (int, string) { return c.code, c.answer })
			_, err := b.SetBound(t.Context(), 9, 64*size.KiB)
			wantError(t, err, c.want)
			if errors.Is(err, ErrStaleEpoch) != c.stale {
				t.Errorf("got %v, want ErrStaleEpoch: %v", err, c.stale)
			}
		})
	}
}

func TestEmulatorStateThatCannotBeTrueIsRefused(t *testing.T) {
	e := open(t, Config{Kind: KindEmulator, URL: serve(t, routes{"/lull/state": `{"pid":1,"pool_bytes":0,"held_bytes":-5}`})})
	_, err := e.Observe(t.Context())
	wantError(t, err, "/lull/state: got pid 1, pool 0B, bound 0B, held -5B", "want a pid and a pool above 0 and no negative bytes")
}
