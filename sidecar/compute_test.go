package sidecar

import (
	"testing"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/slo"
	"github.com/lull-project/lull/trainer"
)

var both = config.Interference{Yield: config.Auto, Pace: config.Auto, ProgressFloor: 0.05}

func promised() *promise {
	return &promise{stream: true, Promise: slo.Promise{TTFT: slo.Line{Base: 200 * time.Millisecond}, TBT: 80 * time.Millisecond}}
}

// told steps the advice every computeEvery and lists what was sent.
func told(c *compute, at *handover.At, pressure float64, decoding, steps int) (sent []trainer.Message) {
	for range steps {
		*at += computeEvery
		if m := c.message(*at, c.advise(*at, pressure, decoding)); m != nil {
			sent = append(sent, m)
		}
	}
	return sent
}

func TestYieldIsSaidAtOnceRenewedWithinItsLeaseAndTakenBackAtOnce(t *testing.T) {
	c, at := newCompute(true, both, nil), handover.At(0)
	if sent := told(c, &at, 0.3, 1, 5); len(sent) != 0 {
		t.Errorf("with slack: sent %v, want nothing", sent)
	}
	if sent := told(c, &at, 0.6, 1, 1); len(sent) != 1 || sent[0] != (trainer.Yield{Lease: yieldLease, Reason: "slack"}) {
		t.Errorf("under pressure: sent %v, want a yield", sent)
	}
	if sent := told(c, &at, 0.6, 1, 40); len(sent) != 4 {
		t.Errorf("over 400 ms of pressure: sent %d messages, want one every 100 ms", len(sent))
	}
	if sent := told(c, &at, 0.1, 1, 1); len(sent) != 1 || sent[0].Type() != "pace" {
		t.Errorf("with slack again: sent %v, want a pace", sent)
	}
	if sent := told(c, &at, 0, 0, 50); len(sent) != 0 {
		t.Errorf("without requests: sent %v, want nothing more", sent)
	}
}

func TestPaceIsSaidWhenItMovesAndBeforeItsLeaseEnds(t *testing.T) {
	c, at := newCompute(true, both, nil), handover.At(0)
	var sent []trainer.Message
	for range 30 { // three seconds of gaps far above the target
		for range 10 {
			c.gap(promised(), 75*time.Millisecond)
		}
		sent = append(sent, told(c, &at, 0.1, 1, 10)...)
	}
	last, ok := sent[len(sent)-1].(trainer.Pace)
	if !ok || last.Duty > 0.5 || last.Duty < 0.05 || last.Lease != paceLease {
		t.Errorf("got %+v, want a low duty with a lease", sent[len(sent)-1])
	}
	if n := len(told(c, &at, 0.1, 1, 300)); n < 3 || n > 5 {
		t.Errorf("three seconds without news: sent %d messages, want one a second", n)
	}
	if sent := told(c, &at, 0, 0, 1); len(sent) != 1 || sent[0] != (trainer.Pace{Duty: 1, Reason: "requests have slack"}) {
		t.Errorf("without requests: sent %v, want full duty at once", sent)
	}
	if c.due(at+time.Second, 0) {
		t.Error("due without requests and at full duty: want the loop to sleep")
	}
}

func TestNothingIsWatchedWithoutAnObjectiveOrWhereItIsOff(t *testing.T) {
	for name, c := range map[string]*compute{
		"no objective": newCompute(false, both, nil),
		"off":          newCompute(true, config.Interference{Yield: config.Never, Pace: config.Never, ProgressFloor: 0.05}, nil),
	} {
		if c.active() || c.due(time.Hour, 5) {
			t.Errorf("%s: active, want not", name)
		}
	}
}

func TestPressureIsThatOfStreamsWhichTheServerHas(t *testing.T) {
	r := newRequests()
	prefill := func(int) time.Duration { return 50 * time.Millisecond }
	if p, n := r.pressure(time.Second, prefill); p != 0 || n != 0 {
		t.Errorf("no requests: got %v of %d", p, n)
	}
	add := func(id handover.RequestID, at handover.At, p *promise, decided bool) *request {
		req := r.add(id, "e", at)
		req.promise = p
		req.decided.Store(decided)
		return req
	}
	add("held", 0, promised(), false)                            // waits for memory
	add("whole", 0, &promise{Promise: promised().Promise}, true) // not a stream
	add("free", 0, nil, true)                                    // nothing promised
	first := add("first", 900*time.Millisecond, promised(), true)
	if p, n := r.pressure(time.Second, prefill); p != 0.5 || n != 0 {
		t.Errorf("waiting for its first token for 100 of 200 ms: got %v of %d, want 0.5 of none decoding", p, n)
	}
	first.stepAt.Store(int64(980 * time.Millisecond))
	if p, n := r.pressure(time.Second, prefill); p != 0.25 || n != 1 {
		t.Errorf("silent for 20 of 80 ms: got %v of %d, want 0.25 of one", p, n)
	}
}
