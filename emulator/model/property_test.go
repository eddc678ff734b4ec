package model

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// world watches a model from outside, by its events alone.
type world struct {
	t         *rapid.T
	cfg       Config
	m         *Model
	now       time.Duration
	mapped    map[int]bool
	requests  map[uint64]Request
	tokens    map[uint64]int
	want      map[uint64]int
	ended     map[uint64]bool
	admitted  map[uint64]bool
	order     []uint64 // live, in order of arrival
	next      uint64
	bound     int
	overSince int // mapped pages when the bound fell below them; -1 when not over
}

func newWorld(t *rapid.T, cfg Config) *world {
	m, err := New(cfg, 1)
	if err != nil {
		t.Fatal(err)
	}
	return &world{
		t: t, cfg: cfg, m: m, bound: cfg.BoundPages, overSince: -1,
		mapped: map[int]bool{}, requests: map[uint64]Request{}, tokens: map[uint64]int{},
		want: map[uint64]int{}, ended: map[uint64]bool{}, admitted: map[uint64]bool{},
	}
}

func (w *world) apply(events []Event) {
	for _, e := range events {
		switch e.Kind {
		case Map:
			if w.mapped[e.Page] || e.Page < 0 || e.Page >= w.cfg.Pages {
				w.t.Fatalf("page %d mapped twice or out of the pool", e.Page)
			}
			w.mapped[e.Page] = true
			if len(w.mapped) > w.bound {
				w.t.Fatalf("page mapped above the bound: %d of %d", len(w.mapped), w.bound)
			}
		case Unmap:
			if !w.mapped[e.Page] {
				w.t.Fatalf("page %d unmapped but not mapped", e.Page)
			}
			delete(w.mapped, e.Page)
		case Admitted:
			w.admit(e)
		case Preempted:
			w.preempt(e)
		case Token:
			w.token(e)
		}
	}
	st := w.m.Stats()
	if st.MappedPages != len(w.mapped) {
		w.t.Fatalf("mapped pages: model says %d, events say %d", st.MappedPages, len(w.mapped))
	}
	if w.overSince >= 0 {
		if st.MappedPages > w.overSince {
			w.t.Fatalf("over the bound and growing: %d then %d, bound %d", w.overSince, st.MappedPages, w.bound)
		}
		w.overSince = st.MappedPages
		if st.MappedPages <= w.bound {
			w.overSince = -1
		}
	}
}

// admit checks that nobody who came earlier is still waiting.
func (w *world) admit(e Event) {
	for _, id := range w.order {
		if id == e.ID {
			break
		}
		if !w.admitted[id] {
			w.t.Fatalf("request %d admitted before %d, which came earlier", e.ID, id)
		}
	}
	if e.N != w.tokens[e.ID] {
		w.t.Fatalf("request %d admitted with %d tokens, had %d", e.ID, e.N, w.tokens[e.ID])
	}
	w.admitted[e.ID] = true
}

// preempt checks that the last-come running one was taken, and no sole one that
// could have gone on.
func (w *world) preempt(e Event) {
	running := 0
	for _, id := range w.order {
		if w.admitted[id] {
			running++
		}
	}
	if i := slices.Index(w.order, e.ID); slices.ContainsFunc(w.order[i+1:], func(id uint64) bool { return w.admitted[id] }) {
		w.t.Fatalf("request %d preempted though a later one runs", e.ID)
	}
	if running == 1 && w.cfg.pagesFor(w.requests[e.ID].PromptTokens+w.tokens[e.ID]) <= w.bound {
		w.t.Fatalf("the sole request %d preempted under a bound of %d that holds it", e.ID, w.bound)
	}
	w.admitted[e.ID] = false
}

func (w *world) token(e Event) {
	if w.tokens[e.ID]+1 != e.N || w.ended[e.ID] {
		w.t.Fatalf("request %d: token %d after %d, ended=%v", e.ID, e.N, w.tokens[e.ID], w.ended[e.ID])
	}
	w.tokens[e.ID] = e.N
	if e.Reason != Unfinished {
		w.end(e.ID)
		if e.N != w.want[e.ID] {
			w.t.Fatalf("request %d ended after %d tokens, want %d", e.ID, e.N, w.want[e.ID])
		}
	}
}

func (w *world) end(id uint64) {
	w.ended[id] = true
	i := slices.Index(w.order, id)
	w.order = slices.Delete(w.order, i, i+1)
}

func (w *world) submit(t *rapid.T) {
	w.next++
	r := Request{
		ID:           w.next,
		PromptTokens: rapid.IntRange(1, w.cfg.MaxModelLen-1).Draw(t, "prompt"),
		OutputTokens: rapid.IntRange(1, 40).Draw(t, "output"),
		MaxTokens:    rapid.IntRange(0, 50).Draw(t, "max"),
	}
	if err := w.m.Submit(w.now, r); err != nil {
		t.Fatal(err)
	}
	w.requests[r.ID] = r
	want := min(r.OutputTokens, w.cfg.MaxModelLen-r.PromptTokens)
	if r.MaxTokens > 0 {
		want = min(want, r.MaxTokens)
	}
	w.want[r.ID] = want
	w.order = append(w.order, r.ID)
}

func (w *world) abort(t *rapid.T) {
	if len(w.order) == 0 {
		return
	}
	id := rapid.SampledFrom(w.order).Draw(t, "abort")
	w.apply(w.m.Abort(w.now, id))
	w.end(id)
}

func (w *world) setBound(pages int) {
	w.m.SetBound(w.now, pages)
	w.bound = pages
	w.overSince = -1
	if len(w.mapped) > pages {
		w.overSince = len(w.mapped)
	}
}

// step lets the model do what is due, a little late or not.
func (w *world) step(late time.Duration) bool {
	at, ok := w.m.NextAt()
	if !ok {
		return false
	}
	w.now = max(w.now, at+late)
	w.apply(w.m.Step(w.now))
	return true
}

// drain runs the model under a full bound until everybody has ended.
func (w *world) drain() {
	w.setBound(w.cfg.Pages)
	for steps := 0; w.step(0); steps++ {
		if steps > 1_000_000 {
			w.t.Fatal("no end after a million steps")
		}
	}
	if len(w.order) != 0 || len(w.mapped) != 0 {
		w.t.Fatalf("after the last step: live %v, mapped %d pages", w.order, len(w.mapped))
	}
}

func drawConfig(t *rapid.T) Config {
	cfg := DefaultConfig()
	cfg.MaxModelLen = rapid.IntRange(2, 200).Draw(t, "len")
	cfg.BlockTokens = rapid.IntRange(1, 16).Draw(t, "block")
	cfg.BlocksPerPage = rapid.IntRange(1, 4).Draw(t, "per page")
	cfg.MaxSeqs = rapid.IntRange(1, 8).Draw(t, "seqs")
	cfg.MaxBatchedTokens = cfg.MaxSeqs + rapid.IntRange(0, 60).Draw(t, "batched")
	cfg.Pages = cfg.pagesFor(cfg.MaxModelLen) + rapid.IntRange(0, 60).Draw(t, "pages")
	cfg.BoundPages = cfg.Pages
	return cfg
}

func TestInvariantsHoldUnderRandomEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, drawConfig(t))
		for range rapid.IntRange(1, 150).Draw(t, "events") {
			switch rapid.IntRange(0, 9).Draw(t, "event") {
			case 0, 1:
				w.submit(t)
			case 2:
				w.abort(t)
			case 3:
				w.setBound(rapid.IntRange(0, w.cfg.Pages).Draw(t, "bound"))
			default:
				w.step(time.Duration(rapid.IntRange(0, 3000).Draw(t, "late")) * time.Microsecond)
			}
		}
		w.drain()
	})
}

func TestSameCallsAndSeedGiveTheSameEvents(t *testing.T) {
	run := func(seed uint64) string {
		m, err := New(DefaultConfig(), seed)
		if err != nil {
			t.Fatal(err)
		}
		var log []byte
		for id := range uint64(40) {
			if err := m.Submit(m.now, Request{ID: id, PromptTokens: 1 + int(id*37%900)}); err != nil {
				t.Fatal(err)
			}
		}
		m.SetBound(0, 100)
		for at, ok := m.NextAt(); ok; at, ok = m.NextAt() {
			log = fmt.Append(log, m.Step(at))
		}
		return string(log)
	}
	if first, second := run(3), run(3); first != second {
		t.Fatal("two runs with seed 3 differ")
	}
	if run(3) == run(4) {
		t.Fatal("seeds 3 and 4 draw the same lengths")
	}
}
