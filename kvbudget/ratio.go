package kvbudget

import "math"

const (
	// priorBytesPerToken is the usual rule of thumb for English text under
	// byte-pair vocabularies of 32k to 128k entries.
	priorBytesPerToken = 4.0
	// priorRatioTokens is how many tokens of evidence the prior is worth: less
	// than one ordinary prompt, so that the first usage already moves it.
	priorRatioTokens = 64.0
	// ratioDecay forgets a request's evidence by half after 70 later ones.
	ratioDecay = 0.99
)

// Ratio is the bytes of prompt text per token, learned from usage: the ratio of
// decayed sums (a ratio estimator, which weighs long prompts more than short
// ones, as the bytes do).
type Ratio struct{ bytes, tokens float64 }

// NewRatio starts from the prior.
func NewRatio() Ratio {
	return Ratio{bytes: priorBytesPerToken * priorRatioTokens, tokens: priorRatioTokens}
}

// Learn takes one finished request's prompt: its text in bytes and its tokens
// by usage. Values of 0 or less teach nothing.
func (r *Ratio) Learn(promptBytes, promptTokens int) {
	if promptBytes <= 0 || promptTokens <= 0 {
		return
	}
	r.bytes = r.bytes*ratioDecay + float64(promptBytes)
	r.tokens = r.tokens*ratioDecay + float64(promptTokens)
}

// BytesPerToken is the current ratio.
func (r *Ratio) BytesPerToken() float64 { return r.bytes / r.tokens }

// Tokens estimates the tokens of a prompt, at least 1.
func (r *Ratio) Tokens(promptBytes int) int {
	return max(1, int(math.Ceil(float64(promptBytes)/r.BytesPerToken())))
}
