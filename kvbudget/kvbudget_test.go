package kvbudget

import (
	"math"
	"sort"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const ms = time.Millisecond

func TestRequestTakesWholeBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := Geometry{BytesPerToken: Bytes(rapid.IntRange(1, 1<<20).Draw(t, "bytes")), BlockTokens: rapid.IntRange(0, 64).Draw(t, "block")}
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

func TestRatioMovesFromThePriorToWhatUsageShows(t *testing.T) {
	r := NewRatio()
	if got := r.Tokens(400); got != 100 {
		t.Fatalf("before usage: Tokens(400) = %d, want 100", got)
	}
	r.Learn(0, 10)
	r.Learn(10, 0)
	if got := r.BytesPerToken(); got != priorBytesPerToken {
		t.Fatalf("usage without a prompt moved the ratio to %v", got)
	}
	for range 400 {
		r.Learn(1300, 200)
	}
	if got := r.BytesPerToken(); math.Abs(got-6.5) > 0.05 {
		t.Fatalf("after 400 prompts of 6.5 bytes a token: %v", got)
	}
	for range 400 {
		r.Learn(600, 200)
	}
	if got := r.BytesPerToken(); math.Abs(got-3) > 0.1 {
		t.Fatalf("the ratio does not forget: %v, want about 3", got)
	}
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

// naiveMore integrates over the histogram in small steps.
func naiveMore(l *Lengths, done, limit, most int) (mean, variance float64) {
	end := done + most
	if limit > 0 {
		end = min(end, limit)
	}
	if end <= done {
		return 0, 0
	}
	var n, s1, s2 float64
	const parts = 64
	for b, w := range l.weight {
		lo, hi := edge(b), edge(b+1)
		for k := range parts {
			x := lo + (hi-lo)*(float64(k)+0.5)/parts
			if x < float64(done) {
				continue
			}
			m := min(x, float64(end)) - float64(done)
			n, s1, s2 = n+w/parts, s1+m*w/parts, s2+m*m*w/parts
		}
	}
	if n < 1e-7 {
		return float64(end - done), 0
	}
	return s1 / n, s2/n - (s1/n)*(s1/n)
}

func TestMoreEqualsAPlainSumOverTheHistogram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := NewLengths()
		for _, n := range rapid.SliceOfN(rapid.IntRange(1, 3000), 0, 60).Draw(t, "answers") {
			l.Learn(n)
		}
		done := rapid.IntRange(0, 800).Draw(t, "done")
		limit := rapid.IntRange(0, 1500).Draw(t, "limit")
		most := rapid.IntRange(0, 1000).Draw(t, "most")
		mean, variance := l.More(done, limit, most)
		m, v := naiveMore(l, done, limit, most)
		if math.Abs(mean-m) > 0.03*m+0.6 || math.Abs(math.Sqrt(variance)-math.Sqrt(max(0, v))) > 0.05*math.Sqrt(max(0, v))+1.5 {
			t.Fatalf("More(%d, %d, %d) = %v ± %v, plain sum %v ± %v", done, limit, most, mean, math.Sqrt(variance), m, math.Sqrt(v))
		}
		if mean < 0 || mean > float64(most) || (limit > 0 && mean > float64(max(0, limit-done))+1e-6) {
			t.Fatalf("More(%d, %d, %d) = %v is beyond a limit", done, limit, most, mean)
		}
	})
}

func TestAnswerLongerThanAnySeenIsExpectedToGoOn(t *testing.T) {
	l := NewLengths()
	if mean, _ := l.More(1<<18, 0, 50); mean != 50 {
		t.Fatalf("expected %v of 50 more tokens", mean)
	}
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

func TestGammaQuantileIsNearTheSampledOne(t *testing.T) {
	// The sum of k exponentials of mean m is gamma with mean km, variance km².
	for _, k := range []int{1, 4, 20} {
		rng := uint64(1)
		var sums []float64
		for range 20_000 {
			s := 0.0
			for range k {
				rng = rng*6364136223846793005 + 1442695040888963407
				s -= 20 * math.Log((float64(rng>>11)+0.5)/(1<<53))
			}
			sums = append(sums, s)
		}
		sort.Float64s(sums)
		want := sums[len(sums)*95/100]
		got := gammaQuantile(float64(20*k), float64(400*k), 0.95)
		if math.Abs(got-want) > 0.06*want {
			t.Errorf("k=%d: quantile %v, sampled %v", k, got, want)
		}
	}
}

func TestArrivalRateIsRightFromTheFirstSeconds(t *testing.T) {
	var a Arrivals
	for i := range 30 {
		a.Add(time.Duration(i)*100*ms, 20<<20)
	}
	n, b := a.Rate(3 * time.Second)
	if n < 9 || n > 11.5 || math.Abs(b/n-20<<20) > 1 {
		t.Fatalf("10 arrivals a second of 20 MiB are seen as %v/s, %v B/s", n, b)
	}
	if q := a.Quantile(3*time.Second, 0, 0.95); q != 0 {
		t.Fatalf("something arrives within no time: %v", q)
	}
}

func TestArrivalsFadeWithoutNews(t *testing.T) {
	var a Arrivals
	for i := range 100 {
		a.Add(time.Duration(i)*100*ms, 20<<20)
	}
	soon, later := a.Quantile(10*time.Second, time.Second, 0.95), a.Quantile(100*time.Second, time.Second, 0.95)
	if later*10 > soon {
		t.Fatalf("after 90 s without an arrival %v is expected, at the start %v", later, soon)
	}
}

func TestBurstsWidenTheQuantileAndEvenArrivalsDoNot(t *testing.T) {
	even, bursty := new(Arrivals), new(Arrivals)
	for i := range 400 {
		even.Add(time.Duration(i)*100*ms, 20<<20)
		bursty.Add(time.Duration(i/10)*time.Second, 20<<20)
	}
	if d := even.Dispersion(); d != 1 {
		t.Errorf("even arrivals have dispersion %v, want 1", d)
	}
	if d := bursty.Dispersion(); d < 5 {
		t.Errorf("bursts of ten have dispersion %v, want about 7", d)
	}
	at := 40 * time.Second
	if e, b := even.Quantile(at, time.Second, 0.95), bursty.Quantile(at, time.Second, 0.95); b < e*3/2 {
		t.Errorf("quantile of bursts %v, of even arrivals %v", b, e)
	}
}

func TestDispersionEqualsCountsInPlainWindows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gaps := rapid.SliceOfN(rapid.IntRange(0, 900), 1, 200).Draw(t, "gaps_ms")
		var a Arrivals
		at := time.Duration(0)
		var times []time.Duration
		for _, g := range gaps {
			at += time.Duration(g) * ms
			times = append(times, at)
			a.Add(at, 1)
		}
		// Plain: every whole window before the last, decayed by its age.
		last := int((at - times[0]) / arrivalBin)
		counts := make([]float64, last)
		for _, x := range times {
			if k := int((x - times[0]) / arrivalBin); k < last {
				counts[k]++
			}
		}
		var n, c1, c2 float64
		for _, c := range counts {
			n, c1, c2 = n*binDecay+1, c1*binDecay+c, c2*binDecay+c*c
		}
		if math.Abs(n-a.bins) > 1e-6 || math.Abs(c1-a.c1) > 1e-6 || math.Abs(c2-a.c2) > 1e-6 {
			t.Fatalf("windows %v %v %v, plain %v %v %v", a.bins, a.c1, a.c2, n, c1, c2)
		}
	})
}

func TestRequestRespectsItsLimits(t *testing.T) {
	p := NewPredictor(Geometry{BytesPerToken: 1, BlockTokens: 1}, 100)
	r := p.Admit(0, Spec{PromptBytes: 4 * 80, MaxTokens: 500}, time.Hour)
	if got := p.AtEnd(r); got != 100 {
		t.Fatalf("a prompt of 80 tokens and a limit of 500 end at %d tokens, want the model's 100", got)
	}
	if r.Mean() > 100 {
		t.Fatalf("expected need %d is beyond the model's length", r.Mean())
	}
	r = p.Admit(0, Spec{PromptBytes: 4 * 4000}, time.Hour)
	if r.Mean() > 101 {
		t.Fatalf("a prompt longer than the model needs %d, want at most 101", r.Mean())
	}
}

// TestSumsEqualAPlainSumOverLiveRequests drives random requests and recounts.
func TestSumsEqualAPlainSumOverLiveRequests(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := NewPredictor(Geometry{BytesPerToken: 64 << 10, BlockTokens: 32}, 4096)
		var live []*Live
		at := time.Duration(0)
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			at += time.Duration(rapid.IntRange(0, 300).Draw(t, "gap")) * ms
			pick := func() int { return rapid.IntRange(0, len(live)-1).Draw(t, "which") }
			switch k := rapid.IntRange(0, 3).Draw(t, "kind"); {
			case k <= 1 || len(live) == 0:
				live = append(live, p.Admit(at, Spec{
					PromptBytes: rapid.IntRange(0, 20_000).Draw(t, "bytes"), MaxTokens: rapid.IntRange(0, 500).Draw(t, "max"),
					Sequences: rapid.IntRange(0, 3).Draw(t, "n"), Need: Bytes(rapid.IntRange(-1, 1).Draw(t, "need")) * 5 << 20,
				}, 50*ms))
			case k == 2:
				r := live[pick()]
				p.Progress(at, r, r.output+rapid.IntRange(-2, 40).Draw(t, "more"), 50*ms)
			default:
				i := pick()
				p.Finish(at, live[i], rapid.IntRange(0, 900).Draw(t, "prompt"), rapid.IntRange(0, 900).Draw(t, "output"))
				live = append(live[:i], live[i+1:]...)
			}
			var want Bytes
			var spread int64
			for _, r := range live {
				want += r.mean
				spread += r.spread
			}
			if p.Need() != want || p.spread != spread || p.Live() != len(live) {
				t.Fatalf("need %v of %d, want %v of %d", p.Need(), p.Live(), want, len(live))
			}
			if d := p.Demand(at, 50*ms, 0.95); d < want {
				t.Fatalf("demand %v is below the expected need %v", d, want)
			}
		}
	})
}

func TestExpectedDemandMovesFromNowToTheSteadyState(t *testing.T) {
	p := NewPredictor(Geometry{BytesPerToken: 1 << 20, BlockTokens: 1}, 0)
	var live []*Live
	for i := range 400 { // 10/s of 20 MiB that stay 1.5 s: 300 MiB
		at := time.Duration(i) * 100 * ms
		live = append(live, p.Admit(at, Spec{Need: 20 << 20}, 50*ms))
		if len(live) > 15 {
			p.Finish(at, live[0], 0, 0)
			live = live[1:]
		}
	}
	at := 40 * time.Second
	for _, r := range live {
		p.Drop(r)
	}
	now, far := p.Expected(at, 0), p.Expected(at, time.Hour)
	if now != 0 || far < 270<<20 || far > 330<<20 {
		t.Fatalf("expected %v now and %v in the long run, want 0 and about 300 MiB", now, far)
	}
}

func TestCallsDoNotAllocate(t *testing.T) {
	p := NewPredictor(Geometry{BytesPerToken: 64 << 10, BlockTokens: 32}, 4096)
	r := p.Admit(0, Spec{PromptBytes: 1200}, 50*ms)
	n := 0
	if got := testing.AllocsPerRun(1000, func() {
		n++
		at := time.Duration(n) * ms
		p.Progress(at, r, n, 50*ms)
		_ = p.Demand(at, 50*ms, 0.95) + p.Expected(at, time.Second) + p.AtEnd(r)
	}); got != 0 {
		t.Fatalf("%v allocations a token, want 0", got)
	}
}

func BenchmarkProgress(b *testing.B) {
	p := NewPredictor(Geometry{BytesPerToken: 64 << 10, BlockTokens: 32}, 0)
	r := p.Admit(0, Spec{PromptBytes: 1200}, 50*ms)
	b.ReportAllocs()
	for i := range b.N {
		p.Progress(time.Duration(i)*ms, r, i&1023, 50*ms)
		if i&1023 == 1023 {
			r.output = 0
		}
	}
}

func BenchmarkAdmitAndFinish(b *testing.B) {
	p := NewPredictor(Geometry{BytesPerToken: 64 << 10, BlockTokens: 32}, 4096)
	b.ReportAllocs()
	for i := range b.N {
		r := p.Admit(time.Duration(i)*ms, Spec{PromptBytes: 1200}, 50*ms)
		p.Finish(time.Duration(i)*ms, r, 300, 60)
	}
}

func BenchmarkDemand(b *testing.B) {
	p := NewPredictor(Geometry{BytesPerToken: 64 << 10, BlockTokens: 32}, 4096)
	for i := range 1000 {
		p.Admit(time.Duration(i)*ms, Spec{PromptBytes: 1200}, 50*ms)
	}
	b.ReportAllocs()
	for range b.N {
		_ = p.Demand(time.Second, 50*ms, 0.95) + p.Expected(time.Second, time.Second)
	}
}
