package model

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// flat has a decode step of 10 ms and a prefill of 10 ms + 1 ms a token.
func flat() Config {
	cfg := DefaultConfig()
	cfg.Coefficients = Coefficients{Prefill: Curve{A: 10, B: 1}, Decode: Curve{A: 10}}
	cfg.MaxBatchedTokens, cfg.MaxSeqs, cfg.MaxModelLen = 64, 8, 128
	cfg.BlockTokens, cfg.Pages, cfg.BoundPages = 16, 8, 8
	return cfg
}

func newModel(t *testing.T, cfg Config) *Model {
	t.Helper()
	m, err := New(cfg, 1)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func submit(t *testing.T, m *Model, at time.Duration, r Request) {
	t.Helper()
	if err := m.Submit(at, r); err != nil {
		t.Fatal(err)
	}
}

// tell runs the model on its own schedule up to the end of until, and writes
// what happened as a line of "12ms token 1/3" and the like.
func tell(m *Model, until time.Duration) string {
	var b strings.Builder
	for at, ok := m.NextAt(); ok && at <= until; at, ok = m.NextAt() {
		b.WriteString(describe(m.Step(at)))
	}
	return strings.TrimSpace(b.String())
}

func describe(events []Event) string {
	var b strings.Builder
	pages := 0
	for _, e := range events {
		switch e.Kind {
		case Map:
			pages++
		case Unmap:
			pages--
		case Token:
			fmt.Fprintf(&b, "%v token %d/%d%s; ", e.At, e.ID, e.N, e.Reason)
		case Admitted:
			fmt.Fprintf(&b, "%v admit %d; ", e.At, e.ID)
		case Preempted:
			fmt.Fprintf(&b, "%v preempt %d; ", e.At, e.ID)
		}
	}
	if pages != 0 {
		fmt.Fprintf(&b, "pages %+d; ", pages)
	}
	return b.String()
}

func expect(t *testing.T, got, want string) {
	t.Helper()
	if want = strings.Join(strings.Fields(want), " "); got != want {
		t.Fatalf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestOneRequestTakesPrefillAndThenDecodeSteps(t *testing.T) {
	m := newModel(t, flat())
	submit(t, m, 5*ms, Request{ID: 1, PromptTokens: 20, OutputTokens: 3})
	expect(t, tell(m, time.Second), `
		5ms admit 1; pages +2; 35ms token 1/1; 45ms token 1/2; 55ms token 1/3stop; pages -2;`)
}

func TestLongPromptIsCutIntoChunksBesideDecoding(t *testing.T) {
	m := newModel(t, flat())
	submit(t, m, 0, Request{ID: 1, PromptTokens: 4, OutputTokens: 9})
	submit(t, m, 1*ms, Request{ID: 2, PromptTokens: 100, OutputTokens: 2})
	// Step 2 holds one decoding token and 63 of the prompt, linear part 10 + 64.
	expect(t, tell(m, 150*ms), `
		1ms admit 1; 1ms admit 2; pages +5;
		75ms token 1/1; pages +3;
		126ms token 1/2; 126ms token 2/1; 136ms token 1/3; 136ms token 2/2stop; pages -7;
		146ms token 1/4;`)
}

func TestArrivalDuringAStepWaitsForTheNext(t *testing.T) {
	m := newModel(t, flat())
	submit(t, m, 0, Request{ID: 1, PromptTokens: 10, OutputTokens: 2})
	m.Step(0)
	submit(t, m, 15*ms, Request{ID: 2, PromptTokens: 10, OutputTokens: 1})
	expect(t, tell(m, 100*ms), `
		20ms token 1/1; 20ms admit 2; pages +1;
		41ms token 1/2stop; 41ms token 2/1stop; pages -2;`)
}

func TestArrivalDoesNotJoinAStepThatIsStartedLate(t *testing.T) {
	m := newModel(t, flat())
	submit(t, m, 0, Request{ID: 1, PromptTokens: 10, OutputTokens: 1})
	m.Step(0)
	submit(t, m, 23*ms, Request{ID: 2, PromptTokens: 10, OutputTokens: 1})
	// The step that ended at 20 ms is only looked at now; nothing starts then.
	expect(t, strings.TrimSpace(describe(m.Step(24*ms))), `20ms token 1/1stop; pages -1;`)
	expect(t, tell(m, time.Second), `23ms admit 2; pages +1; 43ms token 2/1stop; pages -1;`)
}

func TestShortOfPagesTheLastComeIsPreemptedAndComputedAgain(t *testing.T) {
	cfg := flat()
	cfg.BoundPages = 3
	m := newModel(t, cfg)
	submit(t, m, 0, Request{ID: 1, PromptTokens: 30, OutputTokens: 6})
	submit(t, m, 0, Request{ID: 2, PromptTokens: 10, OutputTokens: 4})
	// Request 1 needs a third page at token 33; 2 gives way with its 3 tokens, and
	// computes 13 tokens again when 1 has ended.
	expect(t, tell(m, time.Second), `
		0s admit 1; 0s admit 2; pages +3;
		50ms token 1/1; 50ms token 2/1; 60ms token 1/2; 60ms token 2/2;
		70ms token 1/3; 70ms token 2/3; 70ms preempt 2; 80ms token 1/4; 90ms token 1/5;
		100ms token 1/6stop; 100ms admit 2; pages -2; 123ms token 2/4stop; pages -1;`)
	if got := m.Stats().Preemptions; got != 1 {
		t.Fatalf("preemptions: got %d, want 1", got)
	}
}

func TestWaitingRequestIsNotOvertakenByASmallerOne(t *testing.T) {
	cfg := flat()
	cfg.BoundPages = 3
	m := newModel(t, cfg)
	submit(t, m, 0, Request{ID: 1, PromptTokens: 20, OutputTokens: 2})
	submit(t, m, 0, Request{ID: 2, PromptTokens: 40, OutputTokens: 1})
	submit(t, m, 0, Request{ID: 3, PromptTokens: 4, OutputTokens: 1})
	expect(t, tell(m, 35*ms), `0s admit 1; pages +2; 30ms token 1/1;`)
	// 2 waits for 3 pages with 2 of 3 in use: 2 short for itself, 1 more for 3.
	if st := m.Stats(); st.Waiting != 2 || st.ShortPages != 3 {
		t.Fatalf("waiting %d, short %d; want 2 and 3", st.Waiting, st.ShortPages)
	}
}

func TestRaisedBoundWakesAnIdleModelAtOnce(t *testing.T) {
	cfg := flat()
	cfg.BoundPages = 0
	m := newModel(t, cfg)
	submit(t, m, 0, Request{ID: 1, PromptTokens: 5, OutputTokens: 1})
	expect(t, tell(m, time.Second), ``)
	if _, ok := m.NextAt(); ok {
		t.Fatal("a blocked model wants to be called")
	}
	m.SetBound(7*ms, 1)
	expect(t, tell(m, time.Second), `7ms admit 1; pages +1; 22ms token 1/1stop; pages -1;`)
}

func TestLoweredBoundKillsNobodyAndShrinksAsRequestsEnd(t *testing.T) {
	m := newModel(t, flat())
	submit(t, m, 0, Request{ID: 1, PromptTokens: 17, OutputTokens: 2})
	submit(t, m, 0, Request{ID: 2, PromptTokens: 17, OutputTokens: 3})
	expect(t, tell(m, 0), `0s admit 1; 0s admit 2; pages +4;`)
	m.SetBound(1*ms, 2)
	submit(t, m, 1*ms, Request{ID: 3, PromptTokens: 1, OutputTokens: 1})
	expect(t, tell(m, time.Second), `
		44ms token 1/1; 44ms token 2/1; 54ms token 2/2; 54ms token 1/2stop; pages -2;
		64ms token 2/3stop; 64ms admit 3; pages -1; 75ms token 3/1stop; pages -1;`)
	if got := m.Stats().Preemptions; got != 0 {
		t.Fatalf("preemptions: got %d, want 0", got)
	}
}

func TestSoleRequestThatNeedsMoreThanTheBoundWaitsForARise(t *testing.T) {
	m := newModel(t, flat())
	submit(t, m, 0, Request{ID: 1, PromptTokens: 16, OutputTokens: 3})
	m.Step(0)
	m.SetBound(1*ms, 1)
	expect(t, tell(m, time.Second), `26ms token 1/1; 26ms preempt 1; pages -1;`)
	m.SetBound(40*ms, 2)
	expect(t, tell(m, time.Second), `
		40ms admit 1; pages +2; 67ms token 1/2; 77ms token 1/3stop; pages -2;`)
}

func TestAbortFreesAtOnceRunningAndWaiting(t *testing.T) {
	cfg := flat()
	cfg.BoundPages = 2
	m := newModel(t, cfg)
	submit(t, m, 0, Request{ID: 1, PromptTokens: 20, OutputTokens: 5})
	submit(t, m, 0, Request{ID: 2, PromptTokens: 20, OutputTokens: 5})
	m.Step(0)
	if got := describe(m.Abort(1*ms, 2)); got != "" {
		t.Fatalf("abort of a waiting request: got %q, want nothing", got)
	}
	expect(t, strings.TrimSpace(describe(m.Abort(1*ms, 1))), "pages -2;")
	if got := m.Abort(2*ms, 1); got != nil {
		t.Fatalf("second abort: got %v, want nothing", got)
	}
	if st := m.Stats(); st.MappedPages != 0 || st.Running != 0 || st.Waiting != 0 || st.Aborted != 2 {
		t.Fatalf("after both aborts: %+v", st)
	}
	expect(t, tell(m, time.Second), "")
}

func TestLateCallKeepsTheScheduleUpToCatchUp(t *testing.T) {
	cfg := flat()
	cfg.CatchUp = 50 * ms
	m := newModel(t, cfg)
	submit(t, m, 0, Request{ID: 1, PromptTokens: 10, OutputTokens: 4})
	m.Step(3 * ms) // due at 0
	expect(t, strings.TrimSpace(describe(m.Step(29*ms))), "20ms token 1/1;")
	if at, _ := m.NextAt(); at != 30*ms {
		t.Fatalf("next step ends at %v, want 30ms: 10ms after the time that was meant", at)
	}
	expect(t, strings.TrimSpace(describe(m.Step(100*ms))), "100ms token 1/2;")
	if at, _ := m.NextAt(); at != 110*ms || m.Stats().Rebased != 1 {
		t.Fatalf("after 70ms too late: next %v, rebased %d; want 110ms and 1", at, m.Stats().Rebased)
	}
}

func TestAnswerLengthFollowsLimits(t *testing.T) {
	for _, tc := range []struct {
		name   string
		r      Request
		drawn  int
		n      int
		reason Reason
	}{
		{"natural end", Request{PromptTokens: 10}, 7, 7, Stop},
		{"max_tokens cuts", Request{PromptTokens: 10, MaxTokens: 5}, 7, 5, Length},
		{"natural end at the limit is a stop", Request{PromptTokens: 10, MaxTokens: 7}, 7, 7, Stop},
		{"model length cuts", Request{PromptTokens: 90}, 70, 10, Length},
		{"min_tokens lengthens", Request{PromptTokens: 10, MinTokens: 9}, 7, 9, Stop},
		{"ignore_eos goes on to max_tokens", Request{PromptTokens: 10, MaxTokens: 20, IgnoreEOS: true}, 7, 20, Length},
		{"ignore_eos goes on to the model length", Request{PromptTokens: 60, IgnoreEOS: true}, 7, 40, Length},
		{"ignore_eos without a limit leaves a given length", Request{PromptTokens: 10, OutputTokens: 7, IgnoreEOS: true}, 7, 7, Stop},
	} {
		n, reason := answerLength(tc.r, tc.drawn, 100)
		if n != tc.n || reason != tc.reason {
			t.Errorf("%s: got %d %v, want %d %v", tc.name, n, reason, tc.n, tc.reason)
		}
	}
}

func TestSubmitRefusesWhatCanNeverRun(t *testing.T) {
	m := newModel(t, flat())
	submit(t, m, 0, Request{ID: 1, PromptTokens: 5})
	for _, tc := range []struct {
		r    Request
		want string
	}{
		{Request{ID: 2}, "the prompt has 0 tokens, want at least 1"},
		{Request{ID: 2, PromptTokens: 128}, "the prompt has 128 tokens, want fewer than the model's length of 128"},
		{Request{ID: 1, PromptTokens: 5}, "request 1: is live already, want an id of its own"},
	} {
		if err := m.Submit(0, tc.r); err == nil || err.Error() != tc.want {
			t.Errorf("got %v, want %q", err, tc.want)
		}
	}
}

func TestConfigErrorsNameTheField(t *testing.T) {
	for _, tc := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.MaxSeqs = 0 }, "model: max_seqs: got 0, want at least 1"},
		{func(c *Config) { c.TimeScale = 0 }, "model: time_scale: got 0, want a number above 0"},
		{func(c *Config) { c.MaxBatchedTokens = 100 }, "model: max_batched_tokens: got 100, want at least max_seqs (256)"},
		{func(c *Config) { c.Pages = 100 }, "model: pages: got 100, want at least 128"},
		{func(c *Config) { c.BoundPages = 321 }, "model: bound_pages: got 321, want 0 to pages (320)"},
		{func(c *Config) { c.CatchUp = -1 }, "model: catch_up: got -1ns, want 0 or more"},
	} {
		cfg := DefaultConfig()
		tc.change(&cfg)
		if _, err := New(cfg, 1); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("got %v, want %q", err, tc.want)
		}
	}
}

func TestStepTimeOfAMixedPassIsARoofline(t *testing.T) {
	c := Coefficients{Prefill: Curve{A: 1, B: 0.5, C: 0.001}, Decode: Curve{A: 20, B: 0.1, C: 0.01}}
	for _, tc := range []struct {
		name string
		b    Batch
		want float64 // ms
	}{
		{"nothing", Batch{}, 0},
		{"pure decode is its fit", Batch{DecodeSeqs: 10, DecodeTokens: 100}, 20 + 1 + 1},
		{"pure prefill is its fit", Batch{PrefillTokens: 100, PrefillQuad: 10000}, 1 + 50 + 10},
		{"small chunk hides behind the weights", Batch{PrefillTokens: 10, PrefillQuad: 100, DecodeSeqs: 10, DecodeTokens: 100}, 21 + 1 + 0.1},
		{"large chunk hides them", Batch{PrefillTokens: 100, PrefillQuad: 10000, DecodeSeqs: 10, DecodeTokens: 100}, 56 + 1 + 10},
	} {
		if got := float64(c.Time(tc.b)) / float64(ms); got < tc.want-1e-6 || got > tc.want+1e-6 {
			t.Errorf("%s: got %v ms, want %v", tc.name, got, tc.want)
		}
	}
}

func TestCalibrationsAreKnownByName(t *testing.T) {
	if len(Calibrations()) != 6 {
		t.Fatalf("names: got %q, want six", Calibrations())
	}
	for _, name := range Calibrations() {
		c, err := Calibration(name)
		if err != nil || c.Prefill.B <= 0 || c.Decode.A <= 0 || c.KVBytesPerToken <= 0 {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
	_, err := Calibration("b200|Llama-9")
	if err == nil || !strings.Contains(err.Error(), `calibration "b200|Llama-9": not known, want one of a100|Llama-2-13B`) {
		t.Fatalf("got %v", err)
	}
}

func TestSteadyStepsAllocateNothing(t *testing.T) {
	m := fullModel(t, 50)
	if got := testing.AllocsPerRun(200, func() { stepOnce(m) }); got != 0 {
		t.Fatalf("allocations a step: got %v, want 0", got)
	}
}

// fullModel has n requests that decode for ever, as far as a test cares.
func fullModel(t testing.TB, n int) *Model {
	cfg := DefaultConfig()
	cfg.MaxModelLen, cfg.BlockTokens, cfg.Pages, cfg.BoundPages = 1<<28, 1<<12, 1<<18, 1<<18
	m, err := New(cfg, 1)
	if err != nil {
		t.Fatal(err)
	}
	for id := range n {
		if err := m.Submit(0, Request{ID: uint64(id), PromptTokens: 200, OutputTokens: 1 << 27}); err != nil {
			t.Fatal(err)
		}
	}
	for m.Stats().GeneratedTokens < uint64(40*n) {
		stepOnce(m)
	}
	return m
}

func stepOnce(m *Model) {
	at, _ := m.NextAt()
	m.Step(at)
}

func BenchmarkStepWith50Running(b *testing.B) {
	m := fullModel(b, 50)
	b.ReportAllocs()
	for b.Loop() {
		stepOnce(m)
	}
}
