package sidecar

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/proxy"
	"github.com/lull-project/lull/slo"
	"github.com/lull-project/lull/telemetry"
)

const msec = time.Millisecond

// scorer is a score whose clock stands still until it is moved.
type scorer struct {
	*score
	clock   time.Time
	metrics *telemetry.Metrics
}

func newScorer(c config.SLO) *scorer {
	s := &scorer{clock: time.Unix(1000, 0), metrics: telemetry.NewMetrics()}
	s.score = newScore(c, 12*msec, func() time.Time { return s.clock }, s.metrics)
	return s
}

// record is a streamed request that arrived now and was answered whole.
func (s *scorer) record(ttft, generation time.Duration, tokens int) proxy.Record {
	first := s.clock.Add(ttft)
	return proxy.Record{
		Stream: true, Outcome: proxy.OutcomeForwarded, Arrived: s.clock, FirstContent: first, LastContent: first.Add(generation), End: first.Add(generation),
		OutputTokens: tokens, TokenSource: proxy.TokensFromUsage,
	}
}

// kind is what was counted of one kind under an objective.
func (s *scorer) kind(t *testing.T, objective string, k slo.Kind) ObjectiveState {
	t.Helper()
	for _, st := range s.state() {
		for _, o := range st.Objectives {
			if st.Name == objective && o.Objective == k.String() {
				return o
			}
		}
	}
	t.Fatalf("no %v under %s in %+v", k, objective, s.state())
	return ObjectiveState{}
}

func chatSLO() config.SLO {
	c := tieredSLO()
	c.TTFT, c.TBT, c.E2E, c.Success = 100*msec, 20*msec, time.Second, 0.999
	c.Objectives = []config.Objective{{Name: "gold", Tier: "gold", Limits: config.Limits{TTFT: 10 * msec, TTFTPerToken: msec, TTFTFactor: 2, TTFTTarget: 1}}}
	return c
}

func (s *scorer) ask(a asked, r proxy.Request) *promise {
	return s.promise(context.WithValue(context.Background(), askedKey{}, a), r)
}

func TestEachRequestCountsUnderTheObjectiveOfItsTier(t *testing.T) {
	s := newScorer(chatSLO())
	gold := s.ask(asked{tier: "gold"}, proxy.Request{Stream: true, PromptTokens: 15})
	s.done(gold, s.record(50*msec, 0, 1)) // (10 + 15) * 2 = 50
	s.done(gold, s.record(51*msec, 0, 1))
	s.done(s.ask(asked{}, proxy.Request{Stream: true}), s.record(90*msec, 100*msec, 6))
	if got := s.kind(t, "gold", slo.TTFT); got.Total != (slo.Tally{Within: 1, Beyond: 1}) || !got.HardLimit {
		t.Errorf("gold's ttft: %+v, want one within and one beyond a hard limit", got)
	}
	for _, k := range []slo.Kind{slo.TTFT, slo.TPOT, slo.E2E, slo.Success} {
		if got := s.kind(t, "default", k); got.Total != (slo.Tally{Within: 1}) {
			t.Errorf("default's %v: %+v, want one within", k, got.Total)
		}
	}
}

func TestUsageDecidesAboutALimitThatGrowsWithThePrompt(t *testing.T) {
	s := newScorer(chatSLO())
	p := s.ask(asked{tier: "gold"}, proxy.Request{PromptBytes: 40}) // 10 tokens by the prior: a limit of 40ms
	r := s.record(60*msec, 0, 1)
	r.PromptTokens = 30 // a limit of 80ms
	s.done(p, r)
	if got := s.kind(t, "gold", slo.TTFT).Total; got != (slo.Tally{Within: 1}) {
		t.Errorf("got %+v, want within: the prompt had 30 tokens by usage", got)
	}
	if p.promptTokens != 10 {
		t.Errorf("on arrival %d tokens, want 10 estimated from 40 bytes", p.promptTokens)
	}
}

func TestClientsOwnLimitsReplaceTheObjectives(t *testing.T) {
	s := newScorer(chatSLO())
	p := s.ask(asked{ttft: 200 * msec, tpot: 5 * msec}, proxy.Request{Stream: true})
	s.done(p, s.record(150*msec, 60*msec, 11))
	s.gap(p, s.clock, 15*msec)
	for k, want := range map[slo.Kind]slo.Tally{slo.TTFT: {Within: 1}, slo.TPOT: {Beyond: 1}, slo.TBT: {Within: 1}} {
		if got := s.kind(t, "default", k).Total; got != want {
			t.Errorf("%v: %+v, want %+v", k, got, want)
		}
	}
}

func TestEndingsThatPromisedNothingAreNotCounted(t *testing.T) {
	s := newScorer(chatSLO())
	p := s.ask(asked{}, proxy.Request{Stream: true})
	for _, outcome := range []string{proxy.OutcomeClientGone, proxy.OutcomeUpstreamRefused, proxy.OutcomeRequestUnreadable} {
		r := s.record(time.Hour, 0, 1)
		r.Outcome = outcome
		s.done(p, r)
	}
	s.done(nil, s.record(time.Hour, 0, 1)) // ended before it was admitted
	s.gap(nil, s.clock, time.Hour)
	for _, got := range s.state()[1].Objectives {
		if got.Total != (slo.Tally{}) || len(got.Windows) != 0 {
			t.Errorf("counted %+v, want nothing", got)
		}
	}
	if all, _ := s.export(); len(all) != 0 {
		t.Errorf("metrics have %+v, want nothing", all)
	}
}

func TestWhatIsPromisedStandsInTheStateBeforeTheFirstRequest(t *testing.T) {
	s := newScorer(chatSLO())
	var got []string
	for _, st := range s.state() {
		for _, o := range st.Objectives {
			got = append(got, fmt.Sprintf("%s %s %s %v %d", st.Name, o.Objective, o.Limit, o.Target, len(o.Windows)))
		}
	}
	want := []string{
		"gold ttft (10ms + 1ms a token) * 2 1 0",
		"default ttft 100ms 0.99 0", "default tbt 20ms 0.99 0", "default tpot 20ms 0.99 0", "default e2e 1s 0.99 0", "default success  0.999 0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	s.done(s.ask(asked{}, proxy.Request{Stream: true}), s.record(50*msec, 10*msec, 2))
	kinds := ""
	for _, o := range s.state()[1].Objectives {
		kinds += fmt.Sprintf("%s %d ", o.Objective, len(o.Windows))
	}
	if want := "ttft 4 tbt 0 tpot 4 e2e 4 success 4 "; kinds != want {
		t.Errorf("after a request: got %q, want %q", kinds, want)
	}
}

func TestRefusalAndBrokenAnswerAreMisses(t *testing.T) {
	s := newScorer(chatSLO())
	p := s.ask(asked{}, proxy.Request{Stream: true})
	s.done(p, proxy.Record{Outcome: proxy.OutcomeRejectedCapacity, Arrived: s.clock, End: s.clock})
	broken := s.record(50*msec, 10*msec, 2)
	broken.Outcome = proxy.OutcomeBrokenStream
	s.done(p, broken)
	for k, want := range map[slo.Kind]slo.Tally{
		slo.TTFT: {Within: 1, Missing: 1}, slo.TPOT: {Within: 1, Missing: 1}, slo.E2E: {Missing: 2}, slo.Success: {Beyond: 2},
	} {
		if got := s.kind(t, "default", k).Total; got != want {
			t.Errorf("%v: %+v, want %+v", k, got, want)
		}
	}
	if g := s.state()[1].Goodput[0]; g.Good != 0 || g.Requests != 2 {
		t.Errorf("goodput %+v, want none of two", g)
	}
}

func TestSlackIsTheRequestsOwn(t *testing.T) {
	s := newScorer(chatSLO())
	s.done(s.ask(asked{}, proxy.Request{}), s.record(30*msec, 0, 1)) // prefill takes 30 ms
	arrived := s.clock
	s.clock = s.clock.Add(20 * msec)
	for name, c := range map[string]struct {
		a    asked
		r    proxy.Request
		want time.Duration
	}{
		"the default's":   {asked{}, proxy.Request{}, 50 * msec},
		"the tier's":      {asked{tier: "gold"}, proxy.Request{PromptTokens: 40}, 50 * msec},
		"the client's":    {asked{ttft: 400 * msec}, proxy.Request{}, 350 * msec},
		"lost already":    {asked{tier: "gold"}, proxy.Request{PromptTokens: 1}, -28 * msec},
		"bytes, estimate": {asked{tier: "gold"}, proxy.Request{PromptBytes: 160}, 50 * msec},
	} {
		if got := s.slack(s.ask(c.a, c.r), arrived); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if got := newScorer(config.Default().SLO); got.slack(got.ask(asked{}, proxy.Request{}), arrived) != 12*msec {
		t.Error("without an objective a request may wait for admission.within")
	}
}

func TestStateShowsAttainmentBudgetAndBurnRateOfEachWindow(t *testing.T) {
	s := newScorer(chatSLO())
	p := s.ask(asked{}, proxy.Request{Stream: true})
	for i := range 200 {
		r := s.record(50*msec, 10*msec, 2)
		if i < 3 {
			r = s.record(500*msec, 10*msec, 2)
		}
		s.done(p, r)
	}
	s.clock = s.clock.Add(2 * time.Minute)
	got := s.kind(t, "default", slo.TTFT)
	text, err := json.Marshal(got.Windows)
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"window":"1m","covered_s":59,"within":0,"beyond":0,"no_data":0,"misses_left":0},` +
		`{"window":"5m","covered_s":120,"within":197,"beyond":3,"no_data":0,"attainment":0.985,"met":false,"misses_left":-1,"budget_left":-0.5,"burn_rate":1.5},` +
		`{"window":"1h","covered_s":120,"within":197,"beyond":3,"no_data":0,"attainment":0.985,"met":false,"misses_left":-1,"budget_left":-0.5,"burn_rate":1.5},` +
		`{"window":"30d","covered_s":120,"within":197,"beyond":3,"no_data":0,"attainment":0.985,"met":false,"misses_left":-1,"budget_left":-0.5,"burn_rate":1.5}]`
	if string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	if l := got.Latency; l == nil || l.N != 200 || l.P50 != 0.050 && (l.P50 < 0.05 || l.P50 > 0.0501) || l.Max != 0.5 {
		t.Errorf("latency %+v, want 200 samples, a median of 50ms and a maximum of 500ms", l)
	}
	metrics := metricsText(t, s.metrics)
	for _, want := range []string{
		`lull_slo_attainment_ratio{objective="ttft",slo="default",window="5m"} 0.985`, `lull_slo_budget_left_ratio{objective="ttft",slo="default",window="30d"} -0.5`,
		`lull_slo_burn_rate{objective="ttft",slo="default",window="1h"} 1.5`, `lull_slo_total{objective="ttft",result="beyond",slo="default"} 3`,
		`lull_slo_latency_seconds{objective="ttft",quantile="1",slo="default"} 0.5`, `lull_goodput_requests_per_second{slo="default",window="5m"} `,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	if strings.Contains(metrics, `window="1m"} 0.985`) {
		t.Error("the window of a minute has no sample left and still shows an attainment")
	}
}
