package slo

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestPrefillIsPredictedByThePromptsLength(t *testing.T) {
	var p Prefill
	if got := p.For(1000); got != 0 {
		t.Errorf("before the first request: got %v, want 0", got)
	}
	for i := range 60 {
		tokens := 10
		if i%3 == 0 {
			tokens = 1800
		}
		p.Learn(tokens, time.Duration(14+tokens/6)*time.Millisecond) // 14 ms and 314 ms
	}
	for tokens, want := range map[int]time.Duration{10: 15 * time.Millisecond, 1800: 314 * time.Millisecond, 900: 164 * time.Millisecond} {
		if got := p.For(tokens); got < want*8/10 || got > want*12/10 {
			t.Errorf("%d tokens: got %v, want about %v", tokens, got, want)
		}
	}
	if got := p.For(180_000); got > 180_000/600*115*time.Millisecond*11/10 {
		t.Errorf("a prompt far beyond all: got %v, want at most its share of tokens", got)
	}
}

func TestPrefillOfOneLengthIsTheMean(t *testing.T) {
	var p Prefill
	for i := range 40 {
		p.Learn(100, time.Duration(10+10*(i%2))*time.Millisecond)
	}
	for _, tokens := range []int{0, 1, 100} {
		if got := p.For(tokens); got < 14*time.Millisecond || got > 16*time.Millisecond {
			t.Errorf("%d tokens: got %v, want about 15ms", tokens, got)
		}
	}
}

// TestPrefillPerTokenIsTheSlope: 1 ms a token beside 50 ms that every request takes.
func TestPrefillPerTokenIsTheSlope(t *testing.T) {
	var p Prefill
	if p.PerToken() != 0 {
		t.Errorf("%v a token before the first request", p.PerToken())
	}
	for i := range 40 {
		n := 100 + 50*(i%7)
		p.Learn(n, 50*time.Millisecond+time.Duration(n)*time.Millisecond)
	}
	if got := p.PerToken(); got < 990*time.Microsecond || got > 1010*time.Microsecond {
		t.Errorf("%v a token, want 1ms", got)
	}
	p = Prefill{}
	for range 40 {
		p.Learn(100, 50*time.Millisecond)
	}
	if got := p.PerToken(); got != 0 {
		t.Errorf("%v a token where all prompts are as long", got)
	}
}

func TestPrefillTakesQueueingForNoCostOfLength(t *testing.T) {
	src := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		var p Prefill
		for range 40 {
			p.Learn(100+src.IntN(20), time.Duration(src.IntN(500))*time.Millisecond)
		}
		mean := p.y / p.weight
		if got := p.For(200).Seconds(); got < 0 || got > 2*mean {
			t.Fatalf("noise alone: got %.3f s for twice the length, want at most twice the mean %.3f", got, mean)
		}
	}
}
