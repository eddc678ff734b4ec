package kvbudget

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const ms = time.Millisecond

func TestRequestTakesWholeBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := Layout{PerToken: Bytes(rapid.IntRange(1, 1<<20).Draw(t, "bytes")), BlockTokens: rapid.IntRange(0, 64).Draw(t, "block")}
		tokens := rapid.IntRange(-5, 10_000).Draw(t, "tokens")
		var want Bytes
		for n := 0; n < tokens; n += max(g.BlockTokens, 1) {
			want += g.Block()
		}
		if got := g.Request(tokens); got != want {
			t.Fatalf("%+v.Request(%d) = %d, want %d", g, tokens, got, want)
		}
	})
}

func TestBucketsAreInOrderAndHoldTheirTokens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 1<<topOctave-1).Draw(t, "tokens")
		b := bucketOf(n)
		if x := float64(n); x < edge(b) || x >= edge(b+1) {
			t.Fatalf("%d tokens in bucket %d = [%v, %v)", n, b, edge(b), edge(b+1))
		}
	})
	if b := bucketOf(1 << 30); b != lengthBucket-1 {
		t.Fatalf("a huge answer is in bucket %d, want the last", b)
	}
}

// plainMoments integrates over the histogram in small steps.
func plainMoments(l *Lengths, tokens int) (first, second float64) {
	var n float64
	const parts = 64
	for b, w := range l.weight {
		lo, hi := edge(b), edge(b+1)
		for k := range parts {
			m := min(lo+(hi-lo)*(float64(k)+0.5)/parts, float64(tokens))
			n, first, second = n+w/parts, first+m*w/parts, second+m*m*w/parts
		}
	}
	return first / n, second / n
}

func TestMomentsEqualAPlainSumOverTheHistogram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := NewLengths()
		for _, n := range rapid.SliceOfN(rapid.IntRange(1, 3000), 0, 60).Draw(t, "answers") {
			l.Learn(n)
		}
		tokens := rapid.IntRange(1, 3000).Draw(t, "tokens")
		first, _ := plainMoments(l, tokens)
		if got := l.meanWithin(tokens); math.Abs(got-first) > 0.01*first+0.1 {
			t.Fatalf("mean of min(L, %d): %v, plain sum %v", tokens, got, first)
		}
		if _, second := plainMoments(l, 1<<topOctave); math.Abs(l.second()-second) > 0.01*second+1 {
			t.Fatalf("mean square %v, plain sum %v", l.second(), second)
		}
	})
}

// TestForgottenAnswerLeavesNoTrace: whatever was learned since.
func TestForgottenAnswerLeavesNoTrace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := NewLengths(), NewLengths()
		before := rapid.SliceOfN(rapid.IntRange(1, 3000), 0, 20).Draw(t, "before")
		since := rapid.SliceOfN(rapid.IntRange(1, 3000), 0, 20).Draw(t, "since")
		odd := rapid.IntRange(1, 1<<18).Draw(t, "odd")
		for _, n := range before {
			a.Learn(n)
			b.Learn(n)
		}
		a.Learn(odd)
		for _, n := range since {
			a.Learn(n)
			b.Learn(n)
		}
		a.forget(odd, len(since))
		for _, n := range []int{1, 20, 300, 4000} { // a decays by one more answer, which moves no share
			if x, y := a.Still(0, n, 0), b.Still(0, n, 0); math.Abs(x-y) > 0.01 {
				t.Fatalf("S(%d) = %v, without it %v", n, x, y)
			}
		}
	})
}

func TestLengthsForgetOldAnswers(t *testing.T) {
	l := NewLengths()
	for range 2000 {
		l.Learn(1000)
	}
	for range 2000 {
		l.Learn(50)
	}
	if q := l.Quantile(0.99); q > 60 {
		t.Fatalf("99th percentile %d after 2000 answers of 50 tokens", q)
	}
}
