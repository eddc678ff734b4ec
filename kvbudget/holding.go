package kvbudget

import (
	"math"
	"time"
)

const (
	// priorTokensPerSecond is a sequence's decoding speed before any was seen.
	priorTokensPerSecond = 30.0
	// speedDecay forgets a stretch of decoding by half after 700 later ones.
	speedDecay = 0.999
	// mostNeed is the most that one request may need where the pool is not known:
	// far above any device, and far from overflowing a sum over requests.
	mostNeed Bytes = 1 << 48
)

// hold recounts a request and shows the new need to every horizon.
func (f *Forecaster) hold(r *Active) {
	held := f.holds(r)
	if held == r.held {
		return
	}
	f.sum += held - r.held
	r.held = held
	f.show()
}

// holds is what a request needs by itself.
func (f *Forecaster) holds(r *Active) Bytes {
	return f.bytes(r, float64(r.output)+float64(f.ahead(r))*float64(r.asked.Sequences))
}

// show works the need out anew and shows it to every horizon.
func (f *Forecaster) show() {
	need := f.sum - f.saved
	if need == f.need {
		return
	}
	f.need = need
	for i := range f.looks {
		f.looks[i].see(f.need)
	}
}

// ahead is the tokens that each sequence of a request may get before it is
// recounted.
func (f *Forecaster) ahead(r *Active) int {
	if !f.cfg.Lead {
		return 0
	}
	more := int(math.Ceil(f.speed.perSecond() * f.looks[0].horizon.Seconds()))
	if r.limit > 0 {
		more = min(more, r.limit-r.output/r.asked.Sequences)
	}
	return max(more, 0)
}

// bytes is a request with so many generated tokens, at most the pool. Tokens are
// a float, since an absurd count of a client's overflows an integer.
func (f *Forecaster) bytes(r *Active, output float64) Bytes {
	most := f.most()
	if r.asked.Need > 0 {
		return min(r.asked.Need, most)
	}
	tokens := float64(r.asked.PromptTokens) + output
	if tokens*float64(max(f.cfg.Layout.PerToken, 1)) >= float64(most) {
		return most
	}
	return min(f.cfg.Layout.Request(int(tokens)), most)
}

func (f *Forecaster) most() Bytes {
	if f.cfg.Pool > 0 {
		return f.cfg.Pool
	}
	return mostNeed
}

// mostSequences is how many the pool has a token for; the rest wait in the engine.
func (f *Forecaster) mostSequences() int { return max(1, int(f.most()/max(f.tokenBytes(), 1))) }

// settle judges what is due.
func (f *Forecaster) settle(at time.Duration) {
	for i := range f.looks {
		f.looks[i].settle(at)
	}
}

// tokenBytes is the unit of sizes.
func (f *Forecaster) tokenBytes() Bytes { return f.cfg.Layout.PerToken + f.cfg.Layout.Windowed }

// TokensPerSecond is the learned decoding speed of one sequence.
func (f *Forecaster) TokensPerSecond() float64 { return f.speed.perSecond() }

// speed is the tokens a second of one sequence, by decayed sums.
type speed struct{ tokens, seconds float64 }

func (s *speed) learn(tokens float64, took time.Duration) {
	if took > 0 {
		s.tokens, s.seconds = s.tokens*speedDecay+tokens, s.seconds*speedDecay+took.Seconds()
	}
}

func (s *speed) perSecond() float64 { return s.tokens / s.seconds }
