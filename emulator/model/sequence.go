package model

import "time"

// sequence is one live request.
type sequence struct {
	id       uint64
	arrived  time.Duration
	prompt   int
	out      int // tokens generated
	target   int // tokens of the whole answer
	computed int // tokens whose KV exists
	chunk    int // tokens that the running step computes
	reason   Reason
	running  bool
	pages    []int32 // one entry a block
}

// known is how many tokens the sequence has, computed or not.
func (s *sequence) known() int { return s.prompt + s.out }

// answerLength is how long the answer will be and why it ends there. natural is
// the length at which the model would stop by itself.
func answerLength(r Request, natural, maxModelLen int) (int, Reason) {
	limit := maxModelLen - r.PromptTokens
	if r.MaxTokens > 0 {
		limit = min(limit, r.MaxTokens)
	}
	if r.IgnoreEOS && (r.MaxTokens > 0 || r.OutputTokens == 0) {
		return limit, Length
	}
	natural = max(natural, r.MinTokens, 1)
	if natural <= limit {
		return natural, Stop
	}
	return limit, Length
}
