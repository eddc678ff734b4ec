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
		p := NewPredictor(Geometry{BytesPerToken: Bytes(rapid.Int64Range(1, 4<<20).Draw(t, "token")), BlockTokens: rapid.IntRange(1, 256).Draw(t, "block")}, rapid.SampledFrom([]int{0, 1024, 1 << 40}).Draw(t, "len"))
		p.Pool = pool
		most := pool
		if pool == 0 {
			most = mostNeed
		}
		absurd := rapid.SampledFrom([]int{0, 1, 16, 100_000, math.MaxInt32, math.MaxInt64})
		var live []*Live
		at := time.Duration(0)
		for range rapid.IntRange(1, 20).Draw(t, "requests") {
			at += time.Duration(rapid.IntRange(0, 300).Draw(t, "gap")) * ms
			r := p.Admit(at, Spec{
				PromptBytes: rapid.IntRange(0, 1<<30).Draw(t, "bytes"), PromptTokens: rapid.SampledFrom([]int{0, 3, math.MaxInt32}).Draw(t, "prompt"),
				MaxTokens: absurd.Draw(t, "max"), Sequences: absurd.Draw(t, "n"), Need: Bytes(rapid.SampledFrom([]int64{0, 1 << 20, math.MaxInt64}).Draw(t, "need")),
			}, 50*ms)
			live = append(live, r)
			p.Progress(at, r, rapid.IntRange(0, 1<<40).Draw(t, "out"), 50*ms)
			if end := p.AtEnd(r); end < 0 || end > most || r.mean < 0 || r.mean > most || r.spread < 0 {
				t.Fatalf("%+v: at its end %v, mean %v, spread %v, want at most %v", r.spec, end, r.mean, r.spread, most)
			}
			if d := p.Demand(at, 50*ms, 0.95); d < p.Need() {
				t.Fatalf("demand %v is below the need %v", d, p.Need())
			}
		}
		for _, r := range live {
			p.Refuse(r)
		}
		if p.Need() != 0 || p.spread != 0 || p.Live() != 0 {
			t.Fatalf("left: need %v, spread %v, live %d", p.Need(), p.spread, p.Live())
		}
		if n, b := p.Arrivals.Rate(at); n > 1e-3 || b > float64(most)*1e-6 {
			t.Fatalf("refused requests left a rate of %v/s and %v B/s", n, b)
		}
	})
}

func TestRefusedRequestTeachesNothing(t *testing.T) {
	p := NewPredictor(Geometry{BytesPerToken: 64 << 10, BlockTokens: 32}, 1024)
	p.Pool = 256 << 20
	for i := range 20 {
		at := time.Duration(i) * 100 * ms
		p.Finish(at, p.Admit(at, Spec{PromptBytes: 100, MaxTokens: 16}, 50*ms), 25, 16)
	}
	at := 2 * time.Second
	n, bytes := p.Arrivals.Rate(at)
	residence, lengths := p.residence, *p.Lengths
	for range 5 {
		p.Refuse(p.Admit(at, Spec{PromptBytes: 100, MaxTokens: 16, Sequences: math.MaxInt32}, 50*ms))
	}
	if n2, bytes2 := p.Arrivals.Rate(at); math.Abs(n2-n) > 1e-6*n || math.Abs(bytes2-bytes) > 1e-6*bytes {
		t.Errorf("the rate went from %v/s, %v B/s to %v/s, %v B/s", n, bytes, n2, bytes2)
	}
	if p.residence != residence || p.Lengths.weight != lengths.weight {
		t.Error("it taught the time in the engine or the length of answers")
	}
}
