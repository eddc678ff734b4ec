package emulator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lull-project/lull/emulator/memory"
	"github.com/lull-project/lull/emulator/model"
	"github.com/lull-project/lull/size"
)

const ms = time.Millisecond

// testEngine has decode steps of 20 ms and prefills of 40 ms.
func testEngine(t testing.TB) *engine {
	t.Helper()
	cfg := quick()
	cfg.Coefficients = &model.Coefficients{Prefill: model.Curve{A: 40}, Decode: model.Curve{A: 20}}
	pool, err := memory.Reserve(int64(cfg.Pool))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pool.Close() })
	e, err := newEngine(cfg, pool, State{}, newTimes(nil))
	if err != nil {
		t.Fatal(err)
	}
	e.sleep = time.Sleep // the bubble's
	return e
}

// follow writes down when each token of the stream was told.
func follow(e *engine, s *stream) string {
	var log strings.Builder
	for range s.news {
		n, reason := s.read()
		fmt.Fprintf(&log, "%v:%d%v ", e.now(), n, reason)
		if reason != model.Unfinished {
			break
		}
	}
	return strings.TrimSpace(log.String())
}

func TestTokensAreToldAtTheirTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := testEngine(t)
		ctx, cancel := context.WithCancel(t.Context())
		go e.run(ctx)
		time.Sleep(5 * ms) // the bubble's clock: a request that comes at 5 ms
		s := newStream(model.Request{ID: 1, PromptTokens: 9, OutputTokens: 3})
		e.submit(s)
		if got, want := follow(e, s), "45ms:1 65ms:2 85ms:3stop"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		cancel()
		<-e.done
	})
}

func TestLateHostTellsLateButKeepsTheSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := testEngine(t)
		late := 7 * ms
		e.sleep = func(d time.Duration) { time.Sleep(d + late); late = 0 }
		ctx, cancel := context.WithCancel(t.Context())
		go e.run(ctx)
		s := newStream(model.Request{ID: 1, PromptTokens: 9, OutputTokens: 3})
		e.submit(s)
		if got, want := follow(e, s), "47ms:1 60ms:2 80ms:3stop"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		cancel()
		<-e.done
	})
}

func TestBoundIsAnsweredBetweenTwoPages(t *testing.T) {
	e := testEngine(t)
	for page := range 4 {
		e.kv.add(deed{kind: model.Map, page: page})
	}
	e.kv.add(deed{kind: model.Unmap, page: 0})
	if err := e.perform(); err != nil {
		t.Fatal(err)
	}
	if got := e.kv.held(); got != 8*size.MiB {
		t.Fatalf("held with three of four pages to come: got %v, want 8MiB", got)
	}
	r := e.obeyBound(command{epoch: 1, bound: 10 * size.MiB})
	if r.Held != 8*size.MiB || r.Bound != 10*size.MiB {
		t.Fatalf("got %+v, want a bound of 10MiB with 8MiB held", r)
	}
	for !e.kv.idle() {
		if err := e.perform(); err != nil {
			t.Fatal(err)
		}
	}
	if got := e.State().Held; got != 6*size.MiB {
		t.Fatalf("held at the end: got %v, want 6MiB", got)
	}
}

func TestHeldNeverCountsAPageThatIsFreedBeforeAnotherIsTaken(t *testing.T) {
	e := testEngine(t)
	for page := range 3 {
		e.kv.add(deed{kind: model.Map, page: page})
	}
	for !e.kv.idle() {
		if err := e.perform(); err != nil {
			t.Fatal(err)
		}
	}
	e.kv.add(deed{kind: model.Unmap, page: 1})
	e.kv.add(deed{kind: model.Map, page: 7})
	if got := e.kv.held(); got != 6*size.MiB {
		t.Fatalf("got %v, want 6MiB: one goes before the other comes", got)
	}
}

// BenchmarkEngineStepWith50Streams is one step of the loop without its waiting:
// the model, 50 tokens told, the state published.
func BenchmarkEngineStepWith50Streams(b *testing.B) {
	cfg := quick()
	cfg.MaxModelLen, cfg.BlockTokens, cfg.KVBytesPerToken, cfg.Pool = 1<<24, 1<<18, 1, 4*size.GiB
	pool, err := memory.Reserve(int64(cfg.Pool))
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	e, err := newEngine(cfg, pool, State{}, newTimes(nil))
	if err != nil {
		b.Fatal(err)
	}
	for id := range uint64(50) {
		s := newStream(model.Request{ID: id, PromptTokens: 4, OutputTokens: 1<<24 - 8})
		if err := e.obey(command{kind: submitCommand, stream: s}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		at, _ := e.model.NextAt()
		e.book(e.model.Step(at))
		e.publish()
		for !e.kv.idle() {
			if err := e.perform(); err != nil {
				b.Fatal(err)
			}
		}
	}
}
