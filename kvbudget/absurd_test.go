package kvbudget

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A client may ask for anything; nothing that it says is worth more than the
// whole pool, and no sum goes astray over it.
func TestNoRequestNeedsMoreThanThePool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pool := Bytes(rapid.Int64Range(0, 1<<44).Draw(t, "pool"))
		f, err := NewForecaster(ForecastConfig{
			Layout:      Layout{PerToken: Bytes(rapid.Int64Range(1, 4<<20).Draw(t, "token")), BlockTokens: rapid.IntRange(1, 256).Draw(t, "block")},
			MaxModelLen: rapid.SampledFrom([]int{0, 1024, 1 << 40}).Draw(t, "len"), Pool: pool, Lead: true, Horizons: []time.Duration{12 * ms, time.Second},
		})
		if err != nil {
			t.Fatal(err)
		}
		most := f.most()
		absurd := rapid.SampledFrom([]int{0, 1, 16, 100_000, math.MaxInt32, math.MaxInt64})
		var live []*Active
		at := time.Duration(0)
		for range rapid.IntRange(1, 20).Draw(t, "requests") {
			at += time.Duration(rapid.IntRange(0, 300).Draw(t, "gap")) * ms
			r := f.Arrive(at, Asked{
				PromptBytes: rapid.IntRange(0, 1<<30).Draw(t, "bytes"), PromptTokens: rapid.SampledFrom([]int{0, 3, math.MaxInt32}).Draw(t, "prompt"),
				MaxTokens: absurd.Draw(t, "max"), Sequences: absurd.Draw(t, "n"), Need: Bytes(rapid.SampledFrom([]int64{0, 1 << 20, math.MaxInt64}).Draw(t, "need")),
			})
			live = append(live, r)
			f.Progress(at, r, rapid.IntRange(0, 1<<40).Draw(t, "out"))
			if end := f.AtEnd(r); end < 0 || end > most || r.held < 0 || r.held > most {
				t.Fatalf("%+v: at its end %v, held %v, want at most %v", r.asked, end, r.held, most)
			}
			for i := range f.cfg.Horizons {
				if d := f.Demand(at, i, 0.95); d < f.Need() {
					t.Fatalf("demand %v is below the need %v", d, f.Need())
				}
			}
		}
		for _, r := range live {
			f.Refuse(at, r)
			f.Refuse(at, r) // a second time: nothing
		}
		if f.Need() != 0 || f.Live() != 0 {
			t.Fatalf("left: need %v, live %d", f.Need(), f.Live())
		}
		for i, n := range f.rates.n {
			if n > 1e-6 {
				t.Fatalf("refused requests left %v arrivals at %v", n, rateScales[i])
			}
		}
	})
}

func TestRefusedRequestTeachesNothing(t *testing.T) {
	f, err := NewForecaster(ForecastConfig{
		Layout: Layout{PerToken: 64 << 10, BlockTokens: 32}, MaxModelLen: 1024, Pool: 256 << 20, Lead: true, Horizons: []time.Duration{12 * ms, time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		at := time.Duration(i) * 100 * ms
		f.Finish(at, f.Arrive(at, Asked{PromptBytes: 100, MaxTokens: 16}), Usage{PromptTokens: 25, OutputTokens: 16})
	}
	at := 2 * time.Second
	f.rates.discount(at)
	rates, size, residence, lengths, prompts := f.rates.n, f.sizes.mean(), f.residence, f.answers.all.weight, *f.prompts.all
	for range 5 {
		f.Refuse(at, f.Arrive(at, Asked{PromptBytes: 100, MaxTokens: 16, Sequences: math.MaxInt32}))
	}
	for i, n := range f.rates.n {
		if math.Abs(n-rates[i]) > 1e-6 {
			t.Errorf("arrivals at %v went from %v to %v", rateScales[i], rates[i], n)
		}
	}
	if got := f.sizes.mean(); math.Abs(got-size) > 0.02*size {
		t.Errorf("the mean need at arrival went from %v to %v tokens", size, got)
	}
	if f.residence != residence || f.answers.all.weight != lengths || *f.prompts.all != prompts {
		t.Error("it taught the time in the engine, the length of answers or the bytes of a token")
	}
}
