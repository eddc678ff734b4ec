package kvbudget

import "math/bits"

const (
	// maxAnswerClasses bounds the memory of Answers; answers of further classes
	// are judged by their model's, or by all.
	maxAnswerClasses = 128
	// classPrior is how many answers a new class's prior is worth, which is the
	// shape of the class above it.
	classPrior = 8.0
	// answerDecay and sizeDecay forget an answer by half after 350 later ones of
	// its class, and an arrival's size by half after 700: quantiles of tails need
	// more of them than means do.
	answerDecay, sizeDecay = 0.998, 0.999
	// promptStep and limitStep are the octaves that share a class.
	promptStep, limitStep = 2, 1
)

// AnswerClass is what the length of an answer is learned by.
type AnswerClass struct {
	Model  string
	Tier   string
	limit  int8 // octave of the limit, 0 none
	prompt int8 // pair of octaves of the prompt's tokens
}

// Answers is the length of answers as survival functions, one for each class of
// (model, limit, prompt size, tier), learned online. A class begins with the
// shape of the class above it: that of all tiers, which begins with that of its
// model, and a model with that of all answers. So there is an estimate before
// the first sample, and a rare class leans on its model.
type Answers struct {
	all     *Lengths
	classes map[AnswerClass]*Lengths // looked up, never walked: no map order in any result
}

// NewAnswers starts from the prior of Lengths.
func NewAnswers() *Answers {
	return &Answers{all: NewLengths().child(priorAnswers), classes: make(map[AnswerClass]*Lengths)}
}

// classOf is the class of a request; a limit of 0 is none.
func classOf(model, tier string, limit, promptTokens int) AnswerClass {
	c := AnswerClass{Model: model, Tier: tier, prompt: int8(1 + bits.Len(uint(max(promptTokens, 0)))/promptStep)}
	if limit > 0 {
		c.limit = int8(1 + bits.Len(uint(limit))/limitStep)
	}
	return c
}

// chain is the classes of a request from the widest to its own.
func chain(model, tier string, limit, promptTokens int) (keys [3]AnswerClass, n int) {
	own := classOf(model, tier, limit, promptTokens)
	keys[0], keys[1], keys[2], n = AnswerClass{Model: model}, own, own, 2
	if tier != "" {
		keys[1].Tier, n = "", 3
	}
	return keys, n
}

// Class is the survival function of a request's answer: that of the narrowest
// class that has seen one. A request that merely comes makes no class, since
// anybody can name models.
func (a *Answers) Class(model, tier string, limit, promptTokens int) *Lengths {
	keys, n := chain(model, tier, limit, promptTokens)
	for i := n - 1; i >= 0; i-- {
		if l, ok := a.classes[keys[i]]; ok {
			return l
		}
	}
	return a.all
}

// Learn takes a finished answer's tokens, for its class, those above it and all.
func (a *Answers) Learn(model, tier string, limit, promptTokens, tokens int) {
	if tokens <= 0 {
		return
	}
	keys, n := chain(model, tier, limit, promptTokens)
	above := a.all
	var classes [3]*Lengths
	for i := range n { // a class begins as the one above was before this answer
		l, ok := a.classes[keys[i]]
		if !ok && len(a.classes) < maxAnswerClasses {
			l = above.child(classPrior)
			a.classes[keys[i]] = l
		}
		if classes[i] = l; l != nil {
			above = l
		}
	}
	a.all.Learn(tokens)
	for _, l := range classes {
		if l != nil {
			l.Learn(tokens)
		}
	}
}

// child has the same shape, worth so many answers.
func (l *Lengths) child(worth float64) *Lengths {
	total := 0.0
	for _, w := range l.weight {
		total += w
	}
	c := &Lengths{dirty: true, keep: answerDecay}
	for b, w := range l.weight {
		c.weight[b] = w / total * worth
	}
	return c
}

// Still is the probability that an answer with done tokens goes beyond done +
// more, given that it has not ended; 0 from the limit on (0: no limit). An answer
// longer than any seen is expected to go on.
func (l *Lengths) Still(done, more, limit int) float64 {
	if limit > 0 && done+more >= limit {
		return 0
	}
	l.build()
	now := l.beyond(done)
	if now < 1e-9 {
		return 1
	}
	return l.beyond(done+more) / now
}

// beyond is S at a whole number of tokens, of a built histogram.
func (l *Lengths) beyond(tokens int) float64 {
	b := bucketOf(tokens)
	return l.s[b] + (l.s[b+1]-l.s[b])*min((float64(tokens)-edges[b])*perWidth[b], 1)
}

// perWidth is one over a bucket's width.
var perWidth = func() (w [lengthBucket]float64) {
	for b := range w {
		w[b] = 1 / (edge(b+1) - edge(b))
	}
	return w
}()

// meanWithin is the mean of min(length, tokens).
func (l *Lengths) meanWithin(tokens int) float64 {
	_, i, _ := l.at(float64(tokens))
	return i
}

// mean is the mean of the whole distribution.
func (l *Lengths) mean() float64 { return l.meanWithin(1 << topOctave) }

// second is the mean of the squares.
func (l *Lengths) second() float64 {
	_, _, j := l.at(1 << topOctave)
	return j
}
