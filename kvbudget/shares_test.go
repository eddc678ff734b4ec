package kvbudget

import (
	"hash/fnv"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// poolOf is an engine's blocks, plainly: a prompt's whole blocks are found by the
// tokens up to their end, in use or only cached; every other block is a request's own.
type poolOf struct {
	block  int
	users  map[string]int  // of whole blocks in use
	cached map[string]bool // of all that ever were
	runs   map[*Active]*run
}

type run struct {
	prompt string // a byte a token
	keys   []string
	own    int // blocks that nobody else can find
	cached int // tokens found
}

// arrive takes the prompt's blocks and says how many tokens were found.
func (p *poolOf) arrive(prompt string) *run {
	r := &run{prompt: prompt}
	found := true
	for end := p.block; end <= len(prompt); end += p.block {
		key := prompt[:end]
		found = found && p.cached[key] && end < len(prompt) // the last token is computed
		if found {
			r.cached += p.block
		}
		if p.users[key] > 0 && !found {
			r.own++ // a second one of its own
			continue
		}
		r.keys = append(r.keys, key)
		p.users[key]++
		p.cached[key] = true
	}
	if len(prompt)%p.block > 0 {
		r.own++
	}
	return r
}

func (p *poolOf) leave(r *run) {
	for _, k := range r.keys {
		p.users[k]--
	}
}

// used is the blocks of live requests.
func (p *poolOf) used() (blocks int) {
	for _, n := range p.users {
		if n > 0 {
			blocks++
		}
	}
	for _, r := range p.runs {
		blocks += r.own
	}
	return blocks
}

// marksOf marks a prompt every so many tokens.
func marksOf(prompt string, every int) (marks []Mark) {
	for n := every; n <= len(prompt); n += every {
		h := fnv.New64a()
		h.Write([]byte(prompt[:n]))
		marks = append(marks, Mark{Upto: n, Sum: h.Sum64()})
	}
	return marks
}

// prompts are drawn from few beginnings, so that many have some in common.
var prompts = rapid.Custom(func(t *rapid.T) string {
	s := ""
	for range rapid.IntRange(1, 6).Draw(t, "parts") {
		part := rapid.SampledFrom([]string{"a", "bb", "ccccccccccc", "dddddddddddddddddddddd"}).Draw(t, "part")
		s += part
	}
	return s
})

func sharingForecaster(t interface{ Fatal(...any) }, block int) *Forecaster {
	f, err := NewForecaster(ForecastConfig{Layout: Layout{PerToken: 1 << 10, BlockTokens: block}, Horizons: testHorizons})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// trusted makes everything in common count as found.
func trusted(f *Forecaster) {
	f.counted = found{expected: 1e30, hit: 1e30}
}

// TestNeedWithPrefixesInCommonIsThatOfThePool: never below what an engine uses whose
// prefix cache finds everything, never above every request by itself, and exactly what
// it uses where each block has a mark.
func TestNeedWithPrefixesInCommonIsThatOfThePool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		block := rapid.IntRange(1, 5).Draw(t, "block")
		every := rapid.SampledFrom([]int{block, 2 * block, 7, 3}).Draw(t, "every")
		exact := every == block && block > 1
		f := sharingForecaster(t, block)
		trusted(f)
		p := &poolOf{block: block, users: map[string]int{}, cached: map[string]bool{}, runs: map[*Active]*run{}}
		var live []*Active
		for k := range rapid.IntRange(1, 60).Draw(t, "events") {
			at := time.Duration(k) * ms
			if len(live) == 0 || rapid.IntRange(0, 2).Draw(t, "kind") > 0 {
				text := prompts.Draw(t, "prompt")
				if exact && len(text)%block == 0 { // a prompt that ends with a block has its last one twice
					text += "e"
				}
				r := f.Arrive(at, Asked{Model: "m", PromptTokens: len(text), Prefix: marksOf(text, every)})
				live, p.runs[r] = append(live, r), p.arrive(text)
			} else {
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				p.leave(p.runs[live[i]])
				delete(p.runs, live[i])
				f.Drop(at, live[i])
				live = append(live[:i], live[i+1:]...)
			}
			whole := Bytes(0)
			for _, r := range live {
				whole += r.Held()
			}
			used := Bytes(p.used()) * f.cfg.Layout.Block()
			if need := f.Need(); need < used || need > whole || exact && need != used {
				t.Fatalf("need %v of %d requests, the pool has %v in use and each by itself takes %v", need, len(live), used, whole)
			}
		}
		for _, r := range live {
			f.Drop(time.Minute, r)
		}
		if f.Need() != 0 || f.saved != 0 || len(f.sharings) != 0 {
			t.Fatalf("left: need %v, saved %v, %d models", f.Need(), f.saved, len(f.sharings))
		}
	})
}

// TestManyWithOneBeginningNeedItOnce: what a marked beginning saves, and that it stays
// as long as anybody has it.
func TestManyWithOneBeginningNeedItOnce(t *testing.T) {
	f := sharingForecaster(t, 16)
	trusted(f)
	marks := []Mark{{512, 1}, {1024, 2}}
	var live []*Active
	for range 10 {
		live = append(live, f.Arrive(0, Asked{Model: "m", PromptTokens: 1100, Prefix: marks}))
	}
	one, begins := f.cfg.Layout.Request(1100), f.cfg.Layout.Request(1024)
	want := begins + 10*(one-begins)
	if f.Need() != want {
		t.Errorf("need %v, want %v", f.Need(), want)
	}
	other := f.Arrive(0, Asked{Model: "x", PromptTokens: 1100, Prefix: marks})
	if f.Adds(other) != one {
		t.Errorf("another model's adds %v, want all of it, %v", f.Adds(other), one)
	}
	f.Drop(0, other)
	f.Drop(0, live[0]) // the first, whose blocks the others found
	if f.Need() != want-(one-begins) {
		t.Errorf("need %v after the first left, want %v", f.Need(), want-(one-begins))
	}
	f.Apart(live[1])
	if adds := f.WouldAdd(live[1]); f.Adds(live[1]) != one || adds != one-begins {
		t.Errorf("apart it adds %v and would add %v, want %v and %v", f.Adds(live[1]), adds, one, one-begins)
	}
	f.Share(live[1])
	for _, r := range live[2:] {
		f.Drop(0, r)
	}
	if f.Need() != one {
		t.Errorf("need %v of the last, want %v: nobody shares it any more", f.Need(), one)
	}
}

// TestNothingIsSavedBeforeTheEngineIsKnownToShare: what texts have in common is not
// yet shared, and what was found cached is not shared where nobody else had it.
func TestNothingIsSavedBeforeTheEngineIsKnownToShare(t *testing.T) {
	marks := []Mark{{512, 1}, {1024, 2}}
	pair := func(f *Forecaster) Bytes { // what the second of two adds
		a := f.Arrive(0, Asked{Model: "m", PromptTokens: 1100, Prefix: marks})
		b := f.Arrive(0, Asked{Model: "m", PromptTokens: 1100, Prefix: marks})
		adds := f.Need() - a.Held()
		f.Drop(0, a)
		f.Drop(0, b)
		return adds
	}
	teach := func(f *Forecaster, alone bool, cached int) {
		for range 100 {
			var beside *Active
			if !alone {
				beside = f.Arrive(0, Asked{Model: "m", PromptTokens: 1100, Prefix: marks})
			}
			f.Finish(0, f.Arrive(0, Asked{Model: "m", PromptTokens: 1100, Prefix: marks}), Usage{PromptTokens: 1100, CachedTokens: cached, OutputTokens: 5})
			if !alone {
				f.Drop(0, beside)
			}
		}
	}
	f := sharingForecaster(t, 16)
	one, begins := f.cfg.Layout.Request(1100), f.cfg.Layout.Request(1024)
	for name, c := range map[string]struct {
		alone       bool
		cached      int
		least, most Bytes
	}{
		"usage that says nothing":            {false, 0, one, one},
		"hits on blocks that nobody used":    {true, 1024, one, one},
		"hits on blocks that another used":   {false, 1024, one - begins, one - begins*9/10},
		"half of what is in common is found": {false, 512, one - begins/2, one - begins*4/10},
	} {
		f := sharingForecaster(t, 16)
		if adds := pair(f); adds != one {
			t.Errorf("before anything is known a second request adds %v, want %v", adds, one)
		}
		teach(f, c.alone, c.cached)
		if adds := pair(f); adds < c.least || adds > c.most {
			t.Errorf("%s: a second request adds %v, want %v to %v", name, adds, c.least, c.most)
		}
	}
	teach(f, false, 1024)
	teach(f, false, 0)
	if adds := pair(f); adds < one*6/10 {
		t.Errorf("after a hundred prompts that were not found a second request adds %v, want most of %v", adds, one)
	}
}

// TestCountersOfTheEngineTellWhereUsageDoesNot: and no longer once it does.
func TestCountersOfTheEngineTellWhereUsageDoesNot(t *testing.T) {
	f := sharingForecaster(t, 16)
	marks := []Mark{{512, 1}, {1024, 2}}
	a := f.Arrive(0, Asked{Model: "m", PromptTokens: 1100, Prefix: marks})
	for range 100 {
		f.Finish(0, f.Arrive(0, Asked{Model: "m", PromptTokens: 1100, Prefix: marks}), Usage{PromptTokens: 1100, OutputTokens: 5})
		f.Found(1024)
	}
	b := f.Arrive(0, Asked{Model: "m", PromptTokens: 1100, Prefix: marks})
	if most := a.Held() / 4; f.Adds(b) > most || f.Need() != a.Held()+f.Adds(b) {
		t.Errorf("a second request adds %v to %v, want at most %v", f.Adds(b), f.Need(), most)
	}
	for range 100 {
		f.Finish(0, f.Arrive(0, Asked{Model: "m", PromptTokens: 1100, Prefix: marks}), Usage{PromptTokens: 1100, CachedTokens: 64, OutputTokens: 5})
	}
	if least := a.Held() * 9 / 10; f.Adds(b) < least {
		t.Errorf("it adds %v by usage that found 64 tokens, want at least %v", f.Adds(b), least)
	}
}

// TestRequestsThatNeverRanSayNothingOfWhatTheEngineFinds: refused for a full queue, or
// gone while they were held, in whatever order.
func TestRequestsThatNeverRanSayNothingOfWhatTheEngineFinds(t *testing.T) {
	f := sharingForecaster(t, 16)
	marks := []Mark{{512, 1}, {1024, 2}}
	ask := func() *Active { return f.Arrive(0, Asked{Model: "m", PromptTokens: 1100, Prefix: marks}) }
	ask()
	for range 100 {
		f.Finish(0, ask(), Usage{PromptTokens: 1100, OutputTokens: 5})
		f.Found(1024)
	}
	before := f.counted
	var held []*Active
	for i := range 300 {
		f.Drop(0, ask())
		if held = append(held, ask()); i%3 == 2 {
			f.Refuse(0, held[1])
			f.Drop(0, held[0])
			f.Drop(0, held[2])
			held = held[:0]
		}
	}
	if a, b := before.share(), f.counted.share(); math.Abs(a-b) > 1e-6 {
		t.Errorf("the share that is found went from %v to %v, want it as it was", a, b)
	}
}

// TestMoreCachedThanThePromptIsThePrompt: a server's own word may be absurd.
func TestMoreCachedThanThePromptIsThePrompt(t *testing.T) {
	said := func(prompt, cached int) float64 {
		f := sharingForecaster(t, 16)
		marks := []Mark{{512, 1}, {1024, 2}}
		f.Arrive(0, Asked{Model: "m", PromptTokens: 1100, Prefix: marks})
		f.Finish(0, f.Arrive(0, Asked{Model: "m", PromptTokens: 1100, Prefix: marks}), Usage{PromptTokens: prompt, CachedTokens: cached, OutputTokens: 5})
		return f.sharings["m"].found.hit
	}
	if got, want := said(10, math.MaxInt), said(10, 10); got != want {
		t.Errorf("got %v tokens found of a prompt of 10, want %v", got, want)
	}
}

// TestWhatManyModelsShareTakesNoMemoryForEver: anybody can name models.
func TestWhatManyModelsShareTakesNoMemoryForEver(t *testing.T) {
	f := sharingForecaster(t, 16)
	var live []*Active
	for i := range 3 * mostSharing {
		live = append(live, f.Arrive(0, Asked{Model: string(rune('A' + i)), PromptTokens: 1100, Prefix: []Mark{{1024, 1}}}))
	}
	if n := len(f.sharings); n != mostSharing {
		t.Errorf("%d models are compared, want %d", n, mostSharing)
	}
	for _, r := range live {
		f.Drop(0, r)
	}
	if n := len(f.sharings); n != 0 {
		t.Errorf("%d models are left, want none", n)
	}
}

func BenchmarkForecastSharedArriveAndFinish(b *testing.B) {
	f := sharingForecaster(b, 16)
	var marks []Mark
	for i := range 20 {
		marks = append(marks, Mark{Upto: 256 << (i / 4), Sum: uint64(i)})
	}
	f.Arrive(0, Asked{Model: "m", PromptTokens: 9000, Prefix: marks})
	at := time.Duration(0)
	b.ReportAllocs()
	for b.Loop() {
		at += ms
		f.Finish(at, f.Arrive(at, Asked{Model: "m", PromptTokens: 9000, Prefix: marks}), Usage{PromptTokens: 9000, CachedTokens: 4000, OutputTokens: 60})
	}
}
