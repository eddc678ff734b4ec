package proxy

import (
	"context"
	"net/http"
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
