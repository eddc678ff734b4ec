package proxy

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// roomless refuses what would go to engine a for want of memory.
func roomless(outcome string) rigOption {
	return withGate(gateFunc(func(_ context.Context, r Request) Verdict {
		return Verdict{Forward: r.Engine != "a", Outcome: outcome}
	}))
}

func TestHoldThatFailsIsServedByAnotherUpstream(t *testing.T) {
	for _, outcome := range []string{OutcomeRejectedDeadline, OutcomeRejectedCapacity} {
		first, second := saying(t, "first"), saying(t, "second")
		r := newRigTo(t, "", failover(first.URL, second.URL), roomless(outcome))
		r.proxy.upstreams[1].health.answered(http.StatusOK)
		for range 2 {
			res := r.post(chatPath, `{"prompt":"`+strings.Repeat("x", 300<<10)+`"}`)
			if got := text(t, res); got != "second" || res.StatusCode != http.StatusOK || res.Header.Get("Retry-After") != "" {
				t.Errorf("%s: got %d %q, want the second's answer", outcome, res.StatusCode, got)
			}
			if rec := r.seen.record(t); rec.Engine != "b" || rec.Outcome != OutcomeRerouted || rec.Admission != OutcomeRerouted || rec.Failed() {
				t.Errorf("%s: record %+v, want it rerouted to b, which is no failure", outcome, rec)
			}
		}
		if s := r.proxy.Stats(); s.Reroutes != 2 || s.InFlight != 0 {
			t.Errorf("%s: stats %+v, want 2 reroutes and nothing in flight", outcome, s)
		}
		for i, u := range r.proxy.upstreams {
			if n := u.health.open.Load(); n != 0 {
				t.Errorf("%s: upstream %d still counts %d open requests", outcome, i, n)
			}
		}
	}
}

func TestHoldThatFailsIsRefusedWhereNoOtherUpstreamServes(t *testing.T) {
	first := saying(t, "first")
	seenAndDown := func(r *rig) {
		r.proxy.upstreams[1].health.answered(http.StatusOK)
		r.proxy.upstreams[1].health.down.Store(true)
	}
	two := failover(first.URL, deadURL(t))
	for name, c := range map[string]struct {
		upstreams rigOption
		before    func(*rig)
	}{
		"no failover":                    {func(c *Config, g *Gate) { two(c, g); c.Failover = false }, seenAndDown},
		"the other is down":              {two, seenAndDown},
		"the other has not answered yet": {two, func(*rig) {}},
		"there is no other":              {failover(first.URL), func(*rig) {}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRigTo(t, "", c.upstreams, roomless(OutcomeRejectedDeadline))
			c.before(r)
			if res := r.post(chatPath, "{}"); res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" {
				t.Errorf("got %d, want 503 with Retry-After", res.StatusCode)
			}
			if rec := r.seen.record(t); rec.Engine != "a" || rec.Outcome != OutcomeRejectedDeadline {
				t.Errorf("record %s of %s, want rejected_deadline of a", rec.Outcome, rec.Engine)
			}
		})
	}
}

func TestUpstreamThatFailsAtOnceDrawsNoLoad(t *testing.T) {
	bad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "ill", http.StatusInternalServerError) }))
	t.Cleanup(bad.Close)
	good := saying(t, "good")
	r := newRigTo(t, "", failover(bad.URL, good.URL), withConfig(func(c *Config) { c.Balance = BalanceLeastLoad }))
	failed := 0
	for range 50 {
		if res := r.post(chatPath, "{}"); res.StatusCode == http.StatusInternalServerError {
			failed++
		}
		r.seen.record(t)
	}
	if failed != 1 {
		t.Errorf("%d of 50 requests went to the one that fails, want the first", failed)
	}
	r.proxy.Check(t.Context()) // its list of models stands: it may try again
	r.proxy.upstreams[0].health.note(nil, true)
	if got := r.proxy.upstreams[0].health.ill.Load(); got != 0 {
		t.Errorf("after a check that it stands it counts %d answers of 5xx, want half", got)
	}
}

func TestUpstreamThatIsBackIsTriedWhereAllWereDown(t *testing.T) {
	back := saying(t, "back")
	r := newRigTo(t, "", failover(deadURL(t), back.URL))
	r.proxy.upstreams[0].health.down.Store(true)
	r.proxy.upstreams[1].health.down.Store(true)
	if got := text(t, r.post(chatPath, "{}")); got != "back" {
		t.Errorf("got %q, want the answer of the one that is back", got)
	}
}
