package sidecar

import (
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lull-project/lull/handover"
)

// TestRequestThatGoesElsewhereIsChargedThere: the core hears that it left the one
// engine, and then that it came to the other and waits for nothing.
func TestRequestThatGoesElsewhereIsChargedThere(t *testing.T) {
	l := &loop{ctx: t.Context(), clock: time.Now, inputs: make(chan input, 2), requests: newRequests()}
	g := &gate{loop: l}
	req := l.requests.add("r1", "a", 0)
	g.Moved("r1", "b") // there was no core to ask when it came
	g.Moved("r9", "b") // nobody knows it
	if n := len(l.inputs); n != 0 {
		t.Fatalf("%d events for requests that the core does not know, want none", n)
	}
	req.asked = handover.Arrived{ID: "r1", Engine: "a", PromptTokens: 7, MaxTokens: 9, Sequences: 1, Slack: time.Second, Promised: true}
	g.Moved("r1", "b")
	if got, want := (<-l.inputs).event(5), (handover.Finished{At: 5, ID: "r1", Refused: true}); got != want {
		t.Errorf("first %+v, want %+v", got, want)
	}
	came := <-l.inputs
	want := handover.Arrived{At: 6, ID: "r1", Engine: "b", PromptTokens: 7, MaxTokens: 9, Sequences: 1, Promised: true}
	if got := came.event(6); !reflect.DeepEqual(got, want) {
		t.Errorf("then %+v, want %+v", got, want)
	}
	if came.do(l); req.engine != "b" {
		t.Errorf("engine %s, want b", req.engine)
	}
}

// TestLoopThatDoesNotAnswerDelaysNoMove: and what was not told is not told later,
// when the request may have ended.
func TestLoopThatDoesNotAnswerDelaysNoMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &loop{ctx: t.Context(), clock: time.Now, inputs: make(chan input), requests: newRequests()}
		g := &gate{loop: l}
		l.requests.add("r1", "a", 0).asked = handover.Arrived{ID: "r1", Engine: "a"}
		began := time.Now()
		g.Moved("r1", "b")
		if took := time.Since(began); took != answerLimit {
			t.Errorf("took %v, want %v", took, answerLimit)
		}
		synctest.Wait()
		select {
		case in := <-l.inputs:
			t.Errorf("an event came late: %+v", in.event(0))
		default:
		}
	})
}
