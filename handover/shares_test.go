package handover

import (
	"testing"
	"time"

	"github.com/lull-project/lull/kvbudget"
)

// TestRequestThatIsHeldSharesNothing: it has no blocks in the engine, so it counts
// whole and lends none; when it goes, what it has in common counts once again.
func TestRequestThatIsHeldSharesNothing(t *testing.T) {
	h := insured(t)
	e := h.engines[0]
	marks := []kvbudget.Mark{{Upto: 512, Sum: 1}, {Upto: 1024, Sum: 2}}
	come := func(id RequestID, slack time.Duration) *request {
		h.Step(Arrived{At: h.now + ms, ID: id, Engine: e.cfg.ID, PromptTokens: 1040, Prefix: marks, Slack: slack})
		return h.requests[id]
	}
	come("stays", 0)
	for range 100 { // the engine is known to share
		come("a", 0)
		h.Step(Finished{At: h.now + ms, ID: "a", PromptTokens: 1040, CachedTokens: 1024, OutputTokens: 4})
	}
	one := h.requests["stays"].live.Held()
	before := e.pred.Need()
	r := come("b", 0)
	if adds := e.pred.Need() - before; adds > one/2 {
		t.Fatalf("one that goes adds %v, want much less than %v", adds, one)
	}
	h.hold(r)
	if adds := e.pred.Need() - before; adds != one || e.queued != one {
		t.Errorf("held it adds %v, and %v are in the queue, want %v", adds, e.queued, one)
	}
	h.unqueue(r)
	if adds := e.pred.Need() - before; adds > one/2 || e.queued != 0 {
		t.Errorf("released it adds %v with %v in the queue, want much less than %v and nothing", adds, e.queued, one)
	}
}

// TestUsageTellsWhatPrefixesBringWhereTheEngineDoesNot: and an engine's own counters
// are believed before it.
func TestUsageTellsWhatPrefixesBringWhereTheEngineDoesNot(t *testing.T) {
	for _, counters := range []bool{false, true} {
		h := insured(t)
		e := h.engines[0]
		queries, hits := uint64(0), uint64(0)
		for range 50 {
			h.Step(Arrived{At: h.now + ms, ID: "a", Engine: e.cfg.ID, PromptTokens: 1000})
			h.Step(Finished{At: h.now + ms, ID: "a", PromptTokens: 1000, CachedTokens: 750, OutputTokens: 4})
			seen := EngineSeen{At: h.now + 100*ms, Engine: e.cfg.ID, Held: 200 * mib, Evictable: 100 * mib, Needed: 100 * mib, Bound: e.bound, BoundEpoch: e.epoch}
			if counters {
				queries, hits = queries+1000, hits+100
				seen.Cached, seen.PrefixQueries, seen.PrefixHits = 50*mib, queries, hits
			}
			h.Step(seen)
		}
		p, want, cached := &e.prefixes, 0.75, 100*mib
		if counters {
			want, cached = 0.1, 50*mib
		}
		if got := p.found / p.looked; got < want-0.01 || got > want+0.01 || p.cached != cached {
			t.Errorf("counters %t: %.2f found with %v cached, want %v with %v", counters, got, p.cached, want, cached)
		}
	}
}
