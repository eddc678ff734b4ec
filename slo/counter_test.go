package slo

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// sample is one that a naive counter keeps.
type sample struct {
	at    time.Duration
	kind  Kind
	tally Tally
}

// naive keeps every sample and counts them anew for every question.
type naive struct {
	all  []sample
	good []sample
}

func (n *naive) window(samples []sample, k Kind, span Span, now time.Duration) (t Tally) {
	newest := int64(now / span.Slot)
	oldest := newest - int64(span.Length/span.Slot) + 1
	for _, s := range samples {
		if slot := int64(s.at / span.Slot); s.kind == k && slot >= oldest && slot <= newest {
			t.add(s.tally)
		}
	}
	return t
}

func (n *naive) total(k Kind) (t Tally) {
	for _, s := range n.all {
		if s.kind == k {
			t.add(s.tally)
		}
	}
	return t
}

// request judges one request by plain comparisons, in nanoseconds times tokens.
func (n *naive) request(at time.Duration, p Promise, e Ended) {
	kept, promised := e.OK, false
	note := func(k Kind, seen, in bool) {
		t := Tally{Missing: 1}
		if seen && in {
			t = Tally{Within: 1}
		} else if seen {
			t = Tally{Beyond: 1}
		}
		n.all = append(n.all, sample{at, k, t})
		kept, promised = kept && seen && in, true
	}
	if limit := p.TTFT.Base + p.TTFT.PerToken*time.Duration(e.PromptTokens); limit > 0 {
		note(TTFT, e.Content, e.TTFT <= limit)
	}
	if p.TPOT > 0 && e.Stream && (!e.Content || e.OutputTokens > 1) {
		note(TPOT, e.Content, e.Generation <= p.TPOT*time.Duration(e.OutputTokens-1))
	}
	if p.E2E > 0 {
		note(E2E, e.OK, e.E2E <= p.E2E)
	}
	if p.Success {
		note(Success, true, e.OK)
	}
	if promised {
		t := Tally{Beyond: 1}
		if kept {
			t = Tally{Within: 1}
		}
		n.good = append(n.good, sample{at: at, tally: t})
	}
}

func drawPromise(t *rapid.T) Promise {
	d := func(name string) time.Duration { return time.Duration(rapid.IntRange(0, 50).Draw(t, name)) }
	return Promise{TTFT: Line{Base: d("ttft"), PerToken: time.Duration(rapid.IntRange(0, 2).Draw(t, "per token"))},
		TBT: d("tbt"), TPOT: d("tpot"), E2E: d("e2e"), Success: rapid.Bool().Draw(t, "success promised")}
}

func drawEnded(t *rapid.T) Ended {
	d := func(name string, most int) time.Duration { return time.Duration(rapid.IntRange(0, most).Draw(t, name)) }
	return Ended{
		OK: rapid.Bool().Draw(t, "ok"), Content: rapid.Bool().Draw(t, "content"), TTFT: d("seen ttft", 100), PromptTokens: rapid.IntRange(0, 30).Draw(t, "prompt"),
		Stream: rapid.Bool().Draw(t, "stream"), Generation: d("generation", 300), OutputTokens: rapid.IntRange(0, 8).Draw(t, "output"), E2E: d("seen e2e", 100),
	}
}

// steps are pauses between samples that touch every window's slots and ends.
var steps = []time.Duration{0, time.Millisecond, time.Second - 1, time.Second, 7 * time.Second, time.Minute, 5 * time.Minute, 59 * time.Minute, time.Hour, 26 * time.Hour, 31 * 24 * time.Hour}

func TestCountsEqualANaiveVersionThatKeepsEverySample(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, n := NewCounter(Objective{}), &naive{}
		now := time.Duration(0)
		for range rapid.IntRange(0, 60).Draw(t, "samples") {
			now += rapid.SampledFrom(steps).Draw(t, "step")
			p := drawPromise(t)
			if rapid.Bool().Draw(t, "gap") {
				gap := time.Duration(rapid.IntRange(0, 100).Draw(t, "gap length"))
				if _, ok := c.Gap(now, p, gap); ok != (p.TBT > 0) {
					t.Fatalf("gap under %v judged: %v", p.TBT, ok)
				}
				if p.TBT > 0 {
					n.all = append(n.all, sample{now, TBT, judge(gap <= p.TBT)})
				}
				continue
			}
			e := drawEnded(t)
			c.Request(now, p, e)
			n.request(now, p, e)
		}
		now += rapid.SampledFrom(steps).Draw(t, "last step")
		mustEqual(t, c, n, now)
	})
}

func mustEqual(t *rapid.T, c *Counter, n *naive, now time.Duration) {
	seen := map[Kind]bool{}
	for _, r := range c.Reports(now) {
		seen[r.Kind] = true
		if want := n.total(r.Kind); r.Total != want {
			t.Fatalf("%v: total %+v, want %+v", r.Kind, r.Total, want)
		}
		for _, w := range r.Windows {
			if want := n.window(n.all, r.Kind, w.Span, now); w.Tally != want {
				t.Fatalf("%v over %s at %v: %+v, want %+v", r.Kind, w.Name, now, w.Tally, want)
			}
			if w.Covered > w.Length || w.Covered > now || now >= w.Length && w.Covered < w.Length-w.Slot {
				t.Fatalf("%s at %v covers %v", w.Name, now, w.Covered)
			}
		}
	}
	for k := range kinds {
		if want := n.total(k); !seen[k] && want.N() > 0 {
			t.Fatalf("%v: no report, want %+v", k, want)
		}
	}
	windows, ok := c.Goodput(now)
	if ok != (len(n.good) > 0) {
		t.Fatalf("goodput known: %v, want %v", ok, len(n.good) > 0)
	}
	if !ok {
		return
	}
	for _, w := range windows {
		if want := n.window(n.good, 0, w.Span, now); w.Tally != want {
			t.Fatalf("goodput over %s: %+v, want %+v", w.Name, w.Tally, want)
		}
	}
}

func TestMissingFirstTokenIsAMiss(t *testing.T) {
	o := Objective{TTFT: Constant(10 * ms)}
	c := NewCounter(o)
	c.Request(0, o.Promise(), Ended{OK: true, Content: true, TTFT: 10 * ms})
	v := c.Request(0, o.Promise(), Ended{})
	if v[TTFT] != (Tally{Missing: 1}) {
		t.Errorf("verdict %+v, want no data", v[TTFT])
	}
	if share, _ := c.Reports(0)[0].Total.Attainment(); share != 0.5 {
		t.Errorf("attainment %v, want 0.5", share)
	}
}

func TestMeanIsNotRoundedBelowThePromise(t *testing.T) {
	o := Objective{TBT: 10}
	c := NewCounter(o)
	for _, e := range []Ended{
		{OK: true, Content: true, Stream: true, Generation: 31, OutputTokens: 4}, // 10.33 ns a gap
		{OK: true, Content: true, Stream: true, Generation: 30, OutputTokens: 4},
		{OK: true, Content: true, Stream: true, Generation: 999, OutputTokens: 1}, // no gap at all
		{OK: true, Content: true, Generation: 999, OutputTokens: 4},               // no stream
	} {
		c.Request(0, o.Promise(), e)
	}
	if got := c.Reports(0)[0]; got.Kind != TPOT || got.Total != (Tally{Within: 1, Beyond: 1}) {
		t.Fatalf("got %v %+v, want one mean within and one beyond", got.Kind, got.Total)
	}
}

func TestMeanOfAnEndlessGenerationDoesNotOverflow(t *testing.T) {
	p := Promise{TPOT: 1 << 62}
	if v := p.verdict(Ended{Content: true, Stream: true, Generation: 100, OutputTokens: 1 << 30}); v[TPOT].Within != 1 {
		t.Errorf("got %+v, want within: the mean is below the promise", v[TPOT])
	}
}

func TestSampleOfAnOvertakenCallerCountsAsNow(t *testing.T) {
	c, p := NewCounter(Objective{}), Promise{TBT: 10}
	c.Gap(10*time.Second, p, 1)
	c.Gap(9*time.Second, p, 99)
	for _, w := range c.Reports(10 * time.Second)[0].Windows {
		if w.Tally != (Tally{Within: 1, Beyond: 1}) {
			t.Errorf("%s: %+v, want both samples", w.Name, w.Tally)
		}
	}
}

func TestGoodputIsPerSecondOfWhatIsCovered(t *testing.T) {
	c, p := NewCounter(Objective{}), Promise{Success: true}
	if _, ok := c.Goodput(0); ok {
		t.Error("goodput is known before the first request")
	}
	for i := range 20 {
		c.Request(time.Duration(i)*time.Second, p, Ended{OK: i%2 == 0})
	}
	windows, _ := c.Goodput(20 * time.Second)
	if got := windows[0].PerSecond(); got != 0.5 {
		t.Errorf("got %v requests/s, want 10 good ones in the 20 s that are covered", got)
	}
	if got := (Counted{}).PerSecond(); got != 0 {
		t.Errorf("got %v of nothing, want 0", got)
	}
}

func TestWindowsAreBoundedWhateverIsCounted(t *testing.T) {
	c, p := NewCounter(Objective{}), Promise{TBT: 10}
	c.Gap(0, p, 1)
	if n := testing.AllocsPerRun(1000, func() { c.Gap(time.Hour, p, 1) }); n != 0 {
		t.Errorf("%v allocations a sample, want 0", n)
	}
}

func TestEveryKindHasANameAndATarget(t *testing.T) {
	o := Objective{TTFTTarget: 1, TBTTarget: 2, E2ETarget: 3, Success: 4}
	for k, want := range map[Kind]struct {
		name   string
		target Target
	}{TTFT: {"ttft", 1}, TBT: {"tbt", 2}, TPOT: {"tpot", 2}, E2E: {"e2e", 3}, Success: {"success", 4}} {
		if k.String() != want.name || o.Target(k) != want.target {
			t.Errorf("kind %d: %s under %d, want %s under %d", k, k, o.Target(k), want.name, want.target)
		}
	}
	if got := (Objective{}).Target(TTFT); got != DefaultTarget {
		t.Errorf("target without one: %v, want 99%%", got)
	}
}
