package kvbudget

import (
	"math"
	"math/bits"
)

const (
	// Buckets of one token up to fineTokens, then eight an octave: at most 12 %
	// wide, the error that blocks of 32 tokens hide.
	fineTokens   = 16
	perOctave    = 8
	topOctave    = 20 // answers of 2^20 tokens and more share the last bucket
	lengthBucket = fineTokens + (topOctave-4)*perOctave

	// priorAnswerTokens is the mean of the prior, an exponential: chat traces lie
	// between 60 and 400 tokens.
	priorAnswerTokens = 200.0
	// priorAnswers is how many answers the prior is worth.
	priorAnswers = 4.0
	// lengthDecay forgets an answer by half after 140 later ones.
	lengthDecay = 0.995
)

// Lengths is the length of answers, learned online: a decayed histogram whose
// survival function S falls evenly inside a bucket. With I(x) = ∫₀ˣ S and
// J(x) = ∫₀ˣ 2uS(u)du kept per bucket, the tail-sum formulas
//
//	E[min(L,t)] = I(t),  E[min(L,t)²] = J(t)
//
// (Feller, An Introduction to Probability Theory, vol. 2, V.6) answer every
// question in constant time.
type Lengths struct {
	keep    float64 // what is left of a weight after one more answer
	weight  [lengthBucket]float64
	s, i, j [lengthBucket + 1]float64 // at each bucket's lower edge
	dirty   bool
}

// NewLengths starts from the prior.
func NewLengths() *Lengths {
	l := &Lengths{dirty: true, keep: lengthDecay}
	for b := range l.weight {
		lo, hi := edge(b), edge(b+1)
		l.weight[b] = priorAnswers * (math.Exp(-lo/priorAnswerTokens) - math.Exp(-hi/priorAnswerTokens))
	}
	return l
}

// Learn takes the tokens of one finished answer; 0 or less teaches nothing.
func (l *Lengths) Learn(tokens int) {
	if tokens <= 0 {
		return
	}
	for b := range l.weight {
		l.weight[b] *= l.keep
		if l.weight[b] < 1e-12 { // as good as forgotten, and denormal numbers are slow
			l.weight[b] = 0
		}
	}
	l.weight[bucketOf(tokens)]++
	l.dirty = true
}

// forget takes back an answer that Learn took, with so many learned since.
func (l *Lengths) forget(tokens, since int) {
	if tokens <= 0 {
		return
	}
	b := bucketOf(tokens)
	l.weight[b] = less(l.weight[b], math.Pow(l.keep, float64(since)), 1e-12)
	l.dirty = true
}

// Quantile is the least length that a share q of answers does not exceed.
func (l *Lengths) Quantile(q float64) int {
	l.build()
	for b := range lengthBucket {
		if 1-l.s[b+1] >= q {
			return int(edge(b + 1))
		}
	}
	return int(edge(lengthBucket))
}

// at is S, I and J at x tokens.
func (l *Lengths) at(x float64) (s, i, j float64) {
	l.build()
	b := bucketOf(int(x))
	lo, hi := edge(b), edge(b+1)
	d := min(x, hi) - lo
	slope := (l.s[b+1] - l.s[b]) / (hi - lo)
	s = l.s[b] + slope*d
	i = l.i[b] + l.s[b]*d + slope*d*d/2
	j = l.j[b] + 2*(lo*l.s[b]*d+(lo*slope+l.s[b])*d*d/2+slope*d*d*d/3)
	return s, i, j
}

func (l *Lengths) build() {
	if !l.dirty {
		return
	}
	l.dirty = false
	total := 0.0
	for _, w := range l.weight {
		total += w
	}
	l.s[0] = 1
	for b, w := range l.weight {
		lo := edge(b)
		d := edge(b+1) - lo
		l.s[b+1] = max(0, l.s[b]-w/total)
		slope := (l.s[b+1] - l.s[b]) / d
		l.i[b+1] = l.i[b] + l.s[b]*d + slope*d*d/2
		l.j[b+1] = l.j[b] + 2*(lo*l.s[b]*d+(lo*slope+l.s[b])*d*d/2+slope*d*d*d/3)
	}
}

func bucketOf(tokens int) int {
	if tokens < fineTokens {
		return max(tokens, 0)
	}
	octave := bits.Len(uint(tokens)) - 1
	if octave >= topOctave {
		return lengthBucket - 1
	}
	return fineTokens + (octave-4)*perOctave + (tokens-1<<octave)*perOctave>>octave
}

// edge is the lower edge of bucket b in tokens.
func edge(b int) float64 { return edges[b] }

var edges = func() (e [lengthBucket + 1]float64) {
	for b := range e {
		if b <= fineTokens {
			e[b] = float64(b)
			continue
		}
		octave, sub := 4+(b-fineTokens)/perOctave, (b-fineTokens)%perOctave
		e[b] = float64(uint64(1)<<octave) * (1 + float64(sub)/perOctave)
	}
	return e
}()
