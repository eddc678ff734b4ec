package sidecar

import (
	"bytes"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/kvbudget"
	"github.com/lull-project/lull/proxy"
	"github.com/lull-project/lull/telemetry"
)

// Whatever breaks in the counting of an ended request, the core must hear of its
// end: a request that lives for ever keeps memory from training for ever.
func TestEndOfARequestReachesTheCoreWhateverBreaksInTheCounting(t *testing.T) {
	l := &loop{ctx: t.Context(), clock: time.Now, inputs: make(chan input, 1), requests: newRequests()}
	l.requests.add("r1", "main", 0)
	g := &gate{loop: l} // no metrics and no score: both panic when they are touched
	panicked := func() (p any) {
		defer func() { p = recover() }()
		g.Done(proxy.Record{ID: "r1", Model: "\xff", Outcome: proxy.OutcomeForwarded, TokenSource: proxy.TokensFromUsage, PromptTokens: 3, OutputTokens: 4})
		return nil
	}()
	if panicked == nil {
		t.Fatal("nothing broke: the test tests nothing")
	}
	if len(l.inputs) != 1 {
		t.Fatal("the core was not told")
	}
	want := handover.Finished{At: 5, ID: "r1", PromptTokens: 3, OutputTokens: 4}
	if got := (<-l.inputs).event(5); got != want || l.requests.live() != 0 {
		t.Errorf("event %+v with %d live, want %+v and none", got, l.requests.live(), want)
	}
}

func TestNoModelNameKeepsARequestAlive(t *testing.T) {
	r := newRig(t, nil)
	for _, model := range []string{"\xff", strings.Repeat("x", 127) + "\u00e9", "\xed\xa0\x80", "\x00", strings.Repeat("\xf0", 300)} {
		body := `{"model":"` + model + `","stream":true,"max_tokens":8,"emulate":{"output_tokens":2},"messages":[{"role":"user","content":"one two"}]}`
		resp, err := r.client.Post(r.base+"/v1/chat/completions", "application/json", bytes.NewReader([]byte(body)))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = bytes.NewBuffer(nil).ReadFrom(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode >= http.StatusInternalServerError {
			t.Errorf("model %s: status %d", strconv.QuoteToASCII(model), resp.StatusCode)
		}
	}
	r.until("every request has ended", func() bool {
		return r.sidecar.loop.requests.live() == 0 && r.metric("lull_requests_in_flight 0")
	})
}

// metric says whether /metrics has that line.
func (r *rig) metric(line string) bool {
	r.t.Helper()
	resp, err := r.client.Get(r.admin + "/metrics")
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	_, _ = b.ReadFrom(resp.Body)
	return strings.Contains(b.String(), line+"\n")
}

func TestOnlyARequestThatTheServerRefusedTeachesNothing(t *testing.T) {
	for _, c := range []struct {
		r    proxy.Record
		want bool
	}{
		{proxy.Record{Outcome: proxy.OutcomeUpstreamRefused, Status: 400}, true},
		{proxy.Record{Outcome: proxy.OutcomeUpstreamRefused, Status: 400, Events: 1}, false},
		{proxy.Record{Outcome: proxy.OutcomeUpstreamRefused, Status: 400, OutputTokens: 1}, false},
		{proxy.Record{Outcome: proxy.OutcomeUpstreamError, Status: 500}, false},
		{proxy.Record{Outcome: proxy.OutcomeClientGone}, false},
		{proxy.Record{Outcome: proxy.OutcomeForwarded, Status: 200}, false},
	} {
		l := &loop{ctx: t.Context(), inputs: make(chan input, 1), requests: newRequests()}
		(&gate{loop: l}).finish(c.r)
		if got := (<-l.inputs).event(0).(handover.Finished).Refused; got != c.want {
			t.Errorf("%s with status %d, %d events and %d tokens: refused %v, want %v", c.r.Outcome, c.r.Status, c.r.Events, c.r.OutputTokens, got, c.want)
		}
	}
}

// TestUsageReachesTheCoreWithWhatWasFoundCached: tokens counted by events teach
// nothing of prompts.
func TestUsageReachesTheCoreWithWhatWasFoundCached(t *testing.T) {
	r := proxy.Record{ID: "a", PromptTokens: 100, CachedTokens: 64, OutputTokens: 7, TokenSource: proxy.TokensFromUsage}
	for source, want := range map[string]handover.Finished{
		proxy.TokensFromUsage:  {ID: "a", PromptTokens: 100, CachedTokens: 64, OutputTokens: 7},
		proxy.TokensFromEvents: {ID: "a"},
	} {
		l := &loop{ctx: t.Context(), inputs: make(chan input, 1), requests: newRequests()}
		r.TokenSource = source
		(&gate{loop: l}).finish(r)
		if got := (<-l.inputs).event(0).(handover.Finished); got != want {
			t.Errorf("tokens from %s: got %+v, want %+v", source, got, want)
		}
	}
}

func TestPromptsMarksReachTheCore(t *testing.T) {
	l := &loop{ctx: t.Context(), clock: time.Now, inputs: make(chan input, 1), requests: newRequests(), compute: &compute{}}
	now := time.Now()
	s := newScore(config.Default().SLO, 0, func() time.Time { return now }, telemetry.NewMetrics())
	g := &gate{loop: l, metrics: telemetry.NewMetrics(), score: s, lent: func() bool { return true }}
	g.Admit(t.Context(), proxy.Request{ID: "a", ArrivedAt: now, Prefix: []proxy.Mark{{Upto: 900, Sum: 7}, {Upto: 1200, Sum: 8}}})
	want := []kvbudget.Mark{{Upto: 900, Sum: 7}, {Upto: 1200, Sum: 8}}
	if got := (<-l.inputs).event(0).(handover.Arrived).Prefix; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestRefusalForAFullQueueIsNotHeld: such a request never waited for memory.
func TestRefusalForAFullQueueIsNotHeld(t *testing.T) {
	r := newRig(t, nil)
	for _, outcome := range []string{proxy.OutcomeRejectedCapacity, proxy.OutcomeRejectedDeadline, proxy.OutcomeRejectedCapacity} {
		r.sidecar.gate.Done(proxy.Record{ID: "x", Outcome: outcome, Admission: outcome, Held: time.Millisecond})
	}
	if !r.metric("lull_request_held_seconds_count 1") {
		t.Error("want the one that waited counted alone")
	}
}
