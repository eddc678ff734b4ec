package proxy

import (
	"testing"
	"time"
)

func TestRecordsFiguresOnAHandTimedStream(t *testing.T) {
	t0 := time.Unix(100, 0)
	ms := func(n int) time.Time { return t0.Add(time.Duration(n) * time.Millisecond) }
	good := Record{Stream: true, Outcome: OutcomeForwarded, Arrived: ms(0), FirstContent: ms(40), LastContent: ms(100), OutputTokens: 4}
	if d, ok := good.TTFT(); !ok || d != 40*time.Millisecond {
		t.Errorf("TTFT: got %v, %v; want 40ms", d, ok)
	}
	if d, ok := good.TPOT(); !ok || d != 20*time.Millisecond {
		t.Errorf("TPOT: got %v, %v; want 20ms: 60ms over the 3 tokens after the first", d, ok)
	}
	for name, spoil := range map[string]func(*Record){
		"one token": func(r *Record) { r.OutputTokens = 1 },
		"no stream": func(r *Record) { r.Stream = false },
		"no text":   func(r *Record) { r.FirstContent = time.Time{} },
	} {
		r := good
		spoil(&r)
		if d, ok := r.TPOT(); ok {
			t.Errorf("%s: TPOT: got %v, want none", name, d)
		}
	}
	for outcome, want := range map[string]struct{ failed, ttft bool }{
		OutcomeForwardedUnconfirmed: {false, true}, OutcomeHeldForwarded: {false, true},
		OutcomeClientGone: {true, true}, OutcomeBrokenStream: {true, true},
		OutcomeUpstreamError: {true, false}, OutcomeUpstreamRefused: {true, false},
	} {
		r := good
		r.Outcome = outcome
		if _, ok := r.TTFT(); ok != want.ttft || r.Failed() != want.failed {
			t.Errorf("%s: got TTFT %v, failed %v; want %+v", outcome, ok, r.Failed(), want)
		}
	}
}
