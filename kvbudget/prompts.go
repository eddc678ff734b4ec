package kvbudget

import "math"

const (
	// mostPromptModels bounds the models whose prompts are learned by themselves.
	mostPromptModels = 32
	// promptMemory forgets by half after 70 later prompts with the same content.
	promptMemory = 0.99
	// fewPrompts is what is left of all prompts' evidence as the prior of a model.
	fewPrompts = 1.0 / 32
)

// Content is what a prompt consists of: bytes of text, those of them that describe
// tools, and how many images, audios, videos and files.
type Content struct {
	Bytes, ToolBytes int
	Media            Media
}

// Media counts what a prompt has beside text.
type Media struct{ Images, Audios, Videos, Files int }

// contentKinds are what a prompt's tokens are learned by.
const contentKinds = 6

// priorTokens are a byte's tokens of text and tools, by the rule of thumb of 4 bytes
// for English under vocabularies of 32k to 128k entries, and what an image, half a
// minute of audio, a short video and a file of two pages take in common models (an
// image: 576 patches, LLaVA-1.5). A model's first usage replaces them.
var priorTokens = [contentKinds]float64{0.25, 0.25, 576, 750, 2000, 1500}

// priorWorth is how many tokens of evidence each prior is worth: less than one
// ordinary prompt, so that the first usage already moves it.
const priorWorth = 64.0

// in are the tokens of each kind by the prior.
func (c Content) in() (x [contentKinds]float64) {
	m := c.Media
	for k, n := range [contentKinds]int{c.Bytes - c.ToolBytes, c.ToolBytes, m.Images, m.Audios, m.Videos, m.Files} {
		x[k] = float64(min(max(n, 0), math.MaxInt32)) * priorTokens[k]
	}
	return x
}

// Prompts estimates the tokens of prompts by their content, learned from usage for
// each model; a model's begins with that of all.
type Prompts struct {
	all    *mix
	models map[string]*mix // looked up, never walked
}

// NewPrompts starts from the prior.
func NewPrompts() *Prompts {
	return &Prompts{all: newMix(), models: make(map[string]*mix)}
}

func (p *Prompts) of(model string) *mix {
	if m, ok := p.models[model]; ok {
		return m
	}
	return p.all
}

// Tokens estimates the tokens of a prompt, at least 1.
func (p *Prompts) Tokens(model string, c Content) int {
	return max(1, int(math.Ceil(min(p.of(model).tokens(c.in())-1e-9, math.MaxInt32))))
}

// BytesPerToken is what a token of a model's text takes.
func (p *Prompts) BytesPerToken(model string) float64 {
	return 1 / (priorTokens[0] * p.of(model).factor[0])
}

// Learn takes a finished request's prompt and its tokens by usage. Without either it
// teaches nothing.
func (p *Prompts) Learn(model string, c Content, tokens int) {
	x := c.in()
	if tokens <= 0 || x == ([contentKinds]float64{}) {
		return
	}
	m, ok := p.models[model]
	if !ok && len(p.models) < mostPromptModels {
		m = p.all.child()
		p.models[model] = m
	}
	p.all.learn(x, float64(tokens))
	if m != nil {
		m.learn(x, float64(tokens))
	}
}

// mix is by what factors the prior's tokens must be taken: weighted least squares
// with exponential forgetting. A prompt's error grows as the root of its tokens, so it
// weighs one over them; for text alone that is the ratio of sums.
type mix struct {
	square [contentKinds][contentKinds]float64 // Σ x·xᵀ / tokens
	factor [contentKinds]float64
}

func newMix() *mix {
	m := &mix{}
	for k := range m.factor {
		m.square[k][k], m.factor[k] = priorWorth, 1
	}
	return m
}

// child has the same factors, with little evidence behind them.
func (m *mix) child() *mix {
	c := *m
	for i := range c.square {
		for j := range c.square[i] {
			c.square[i][j] *= fewPrompts
		}
	}
	return &c
}

func (m *mix) tokens(x [contentKinds]float64) (sum float64) {
	for k, f := range m.factor {
		sum += f * x[k]
	}
	return sum
}

// leastFactor and mostFactor bound what a kind's tokens may be of its prior's.
const leastFactor, mostFactor = 1.0 / 50, 50

// learn takes a prompt. What is known of a kind fades with prompts that have it, and
// the prior stays, so that the system can be solved. The factors solve that of before,
// so only their change is looked for: square · change = what this prompt says of it.
func (m *mix) learn(x [contentKinds]float64, came float64) {
	expected := max(m.tokens(x), 1)
	says := x
	for i := range x {
		says[i] *= (came - m.tokens(x)) / expected
	}
	var keep [contentKinds]float64
	for k := range x {
		if keep[k] = 1; x[k] > 0 {
			keep[k] = promptMemory
		}
	}
	for i := range x {
		for j := range x {
			m.square[i][j] = m.square[i][j]*math.Sqrt(keep[i]*keep[j]) + x[i]*x[j]/expected
		}
		fades := (1 - keep[i]) * priorWorth
		m.square[i][i] += fades
		says[i] += fades * (1 - m.factor[i])
	}
	for k, change := range solved(m.square, says) {
		m.factor[k] = min(max(m.factor[k]+change, leastFactor), mostFactor)
	}
}

// solved is the solution of a·x = b, a being positive definite: Gaussian elimination
// needs no pivots then (Golub and Van Loan, Matrix Computations, 4.2).
func solved(a [contentKinds][contentKinds]float64, b [contentKinds]float64) [contentKinds]float64 {
	for k := range b {
		for i := k + 1; i < contentKinds; i++ {
			times := a[i][k] / a[k][k]
			for j := k; j < contentKinds; j++ {
				a[i][j] -= times * a[k][j]
			}
			b[i] -= times * b[k]
		}
	}
	for k := contentKinds - 1; k >= 0; k-- {
		for j := k + 1; j < contentKinds; j++ {
			b[k] -= a[k][j] * b[j]
		}
		b[k] /= a[k][k]
	}
	return b
}
