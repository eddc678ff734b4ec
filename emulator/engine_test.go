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

// perform does the next n deeds, as the goroutine of kv would.
func perform(t *testing.T, k *kv, n int) {
	t.Helper()
	for range n {
		if did, err := k.next(); !did || err != nil {
			t.Fatalf("did %v, %v", did, err)
		}
	}
}

func told(s *stream) string {
	n, reason := s.read()
	return fmt.Sprintf("%d%v", n, reason)
}

func expectHeld(t *testing.T, k *kv, held, mapped size.Bytes) {
	t.Helper()
	if got, real := k.held(), size.Bytes(k.pool.Mapped()); got != held || real != mapped {
		t.Fatalf("held %v with %v mapped, want %v with %v", got, real, held, mapped)
	}
}

func TestTokenWaitsForThePagesOfItsOwnRequestOnly(t *testing.T) {
	k := testEngine(t).kv
	a, b := newStream(model.Request{ID: 1}), newStream(model.Request{ID: 2})
	k.mapPage(0, a)
	k.mapPage(1, a)
	k.tell(a, 1, model.Unfinished)
	k.tell(b, 5, model.Unfinished)
	if told(a) != "0" || told(b) != "5" {
		t.Fatalf("before: got %s and %s, want 0 and 5", told(a), told(b))
	}
	expectHeld(t, k, 4*size.MiB, 0)
	perform(t, k, 1)
	k.tell(a, 2, model.Unfinished)
	if told(a) != "0" {
		t.Fatalf("one page to come: got %s, want 0", told(a))
	}
	perform(t, k, 1)
	if told(a) != "2" {
		t.Fatalf("no page to come: got %s, want 2", told(a))
	}
	expectHeld(t, k, 4*size.MiB, 4*size.MiB)
}

func TestAnswerEndsAfterItsPagesCameAndWent(t *testing.T) {
	k := testEngine(t).kv
	s := newStream(model.Request{ID: 1})
	k.mapPage(0, s)
	k.mapPage(1, s)
	perform(t, k, 1)
	for page := range 2 {
		if err := k.unmapPage(page, s, false); err != nil {
			t.Fatal(err)
		}
	}
	k.tell(s, 1, model.Stop)
	expectHeld(t, k, 2*size.MiB, 0) // page 0 went at once, page 1 is to come and go
	perform(t, k, 1)
	if told(s) != "0" {
		t.Fatalf("with a page mapped: got %s, want 0", told(s))
	}
	perform(t, k, 1)
	if told(s) != "1stop" {
		t.Fatalf("got %s, want 1stop", told(s))
	}
	expectHeld(t, k, 0, 0)
}

func TestAbortLeavesOutPagesThatHaveNotCome(t *testing.T) {
	k := testEngine(t).kv
	s := newStream(model.Request{ID: 1})
	for page := range 3 {
		k.mapPage(page, s)
	}
	k.tell(s, 1, model.Unfinished)
	perform(t, k, 1)
	for page := range 3 {
		if err := k.unmapPage(page, s, true); err != nil {
			t.Fatal(err)
		}
	}
	expectHeld(t, k, 0, 0)
	if did, _ := k.next(); did || told(s) != "1" {
		t.Fatalf("did %v, told %s; want nothing left to do and the token told", did, told(s))
	}
}

func TestPageUnderWayIsUnmappedInItsTurn(t *testing.T) {
	k := testEngine(t).kv
	k.mapPage(0, nil)
	k.busy = true // as while next fills it
	if err := k.unmapPage(0, nil, true); err != nil {
		t.Fatal(err)
	}
	k.mapPage(0, nil) // for somebody else
	expectHeld(t, k, 2*size.MiB, 0)
	perform(t, k, 3)
	expectHeld(t, k, 2*size.MiB, 2*size.MiB)
}

func TestHeldCountsAPageThatIsFreedBeforeAnotherIsTakenOnce(t *testing.T) {
	k := testEngine(t).kv
	for page := range 3 {
		k.mapPage(page, nil)
	}
	perform(t, k, 3)
	if err := k.unmapPage(1, nil, false); err != nil {
		t.Fatal(err)
	}
	k.mapPage(7, nil)
	expectHeld(t, k, 6*size.MiB, 4*size.MiB)
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
		if err := e.book(e.model.Step(at), false); err != nil {
			b.Fatal(err)
		}
		e.publish()
		for did := true; did; {
			if did, err = e.kv.next(); err != nil {
				b.Fatal(err)
			}
		}
	}
}
