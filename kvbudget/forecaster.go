package kvbudget

import (
	"errors"
	"fmt"
	"time"
)

// ForecastConfig is what a Forecaster is told; the rest it learns.
type ForecastConfig struct {
	Layout Layout
	// MaxModelLen is the tokens of one request at most, 0 unknown.
	MaxModelLen int
	// Horizons are how far it looks; each is learned by itself.
	Horizons []time.Duration
}

// Validate names the key, the value and the rule of the first thing wrong.
func (c ForecastConfig) Validate() error {
	if c.Layout.PerToken+c.Layout.Windowed <= 0 {
		return errors.New("forecast: layout: got 0 B a token, want more; read it from a config.json, an engine, or give it by hand")
	}
	if c.MaxModelLen < 0 {
		return fmt.Errorf("forecast: max_model_len: got %d, want 0 (unknown) or more", c.MaxModelLen)
	}
	if len(c.Horizons) == 0 {
		return errors.New("forecast: horizons: got none, want at least one")
	}
	for _, h := range c.Horizons {
		if h < time.Millisecond || h > time.Hour {
			return fmt.Errorf("forecast: horizons: got %v, want 1ms to 1h", h)
		}
	}
	return nil
}

// Asked is a request as it arrives.
type Asked struct {
	Model        string
	PromptTokens int
	// MaxTokens is the answer's limit, 0 none; Sequences the answers, 0 is 1.
	MaxTokens, Sequences int
	// Answer is the tokens that each answer will have, where that is known; 0 is
	// unknown.
	Answer int
}

// Active is one request that a Forecaster counts.
type Active struct {
	asked   Asked
	limit   int // tokens of one sequence, 0 unknown
	output  int // tokens of all sequences
	moved   time.Duration
	held    Bytes
	index   int
	lengths *Lengths
}

// Held is what the request needs now.
func (r *Active) Held() Bytes { return r.held }

// Forecaster predicts, for each of its horizons, the distribution of the largest
// KV need within it: the requests that live now, their growth and their ends by
// the survival of answers, and those that will arrive. Every horizon's levels
// are corrected by what came of past forecasts.
//
// It stands beside Predictor, which handover uses today. Memory is O(1) a
// request; Progress allocates nothing.
type Forecaster struct {
	cfg     ForecastConfig
	answers *Answers
	rates   *Rates
	sizes   *Lengths // needs at arrival, in units of a token's bytes
	ranks   ranks
	live    []*Active
	need    Bytes
	speed   speed
	looks   []lookout
}

// NewForecaster starts every model from its prior.
func NewForecaster(c ForecastConfig) (*Forecaster, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	f := &Forecaster{
		cfg: c, answers: NewAnswers(), rates: NewRates(c.Horizons), sizes: NewLengths(), ranks: newRanks(),
		speed: speed{tokens: priorTokensPerSecond, seconds: 1}, looks: make([]lookout, len(c.Horizons)),
	}
	f.sizes.keep = sizeDecay
	for i, h := range c.Horizons {
		f.looks[i] = lookout{horizon: h, levels: newRecalibration(), usual: newUsual()}
	}
	return f, nil
}

// Need is the KV of all live requests, and Live their number.
func (f *Forecaster) Need() Bytes { return f.need }

// Live is the number of requests that count.
func (f *Forecaster) Live() int { return len(f.live) }

// Arrive counts a request from now on. Times never go back.
func (f *Forecaster) Arrive(at time.Duration, a Asked) *Active {
	f.settle(at)
	a.Sequences, a.PromptTokens = max(a.Sequences, 1), max(a.PromptTokens, 1)
	r := &Active{asked: a, limit: max(a.MaxTokens, 0), moved: at, index: len(f.live)}
	if most := f.cfg.MaxModelLen; most > 0 {
		r.asked.PromptTokens = min(a.PromptTokens, most)
		room := max(1, most-r.asked.PromptTokens)
		if r.limit == 0 || r.limit > room {
			r.limit = room
		}
	}
	r.lengths = f.answers.Class(a.Model, a.MaxTokens, r.asked.PromptTokens)
	f.live = append(f.live, r)
	f.hold(r)
	f.rates.Add(at)
	f.sizes.Learn(int(r.held / f.tokenBytes()))
	return r
}

// Progress takes a request's total of generated tokens, never beyond its limit;
// a total that went back is left alone.
func (f *Forecaster) Progress(at time.Duration, r *Active, outputTokens int) {
	if r.limit > 0 {
		outputTokens = min(outputTokens, r.limit*r.asked.Sequences)
	}
	if outputTokens <= r.output {
		return
	}
	f.settle(at)
	if r.output > 0 {
		f.speed.learn(float64(outputTokens-r.output)/float64(r.asked.Sequences), at-r.moved)
	}
	r.output, r.moved = outputTokens, at
	f.hold(r)
}

// Finish stops counting a request and learns its answer's length: by usage, or
// by what was seen where outputTokens is 0.
func (f *Forecaster) Finish(at time.Duration, r *Active, outputTokens int) {
	if outputTokens <= 0 {
		outputTokens = r.output
	}
	f.Drop(at, r)
	f.answers.Learn(r.asked.Model, r.asked.MaxTokens, r.asked.PromptTokens, outputTokens/r.asked.Sequences)
}

// Drop stops counting a request without learning from it. A second call does
// nothing.
func (f *Forecaster) Drop(at time.Duration, r *Active) {
	if r.index < 0 {
		return
	}
	f.settle(at)
	last := len(f.live) - 1
	f.live[r.index] = f.live[last]
	f.live[r.index].index = r.index
	f.live[last] = nil
	f.live = f.live[:last]
	r.index = -1
	f.need -= r.held
}

// hold recounts a request and shows the new need to every horizon.
func (f *Forecaster) hold(r *Active) {
	held := f.cfg.Layout.Request(r.asked.PromptTokens + r.output)
	if held == r.held {
		return
	}
	f.need += held - r.held
	r.held = held
	for i := range f.looks {
		f.looks[i].see(f.need)
	}
}

func (f *Forecaster) settle(at time.Duration) {
	for i := range f.looks {
		f.looks[i].settle(at)
	}
}

// tokenBytes is the unit of sizes.
func (f *Forecaster) tokenBytes() Bytes { return f.cfg.Layout.PerToken + f.cfg.Layout.Windowed }

// speed is the tokens a second of one sequence, by decayed sums.
type speed struct{ tokens, seconds float64 }

func (s *speed) learn(tokens float64, took time.Duration) {
	if took > 0 {
		s.tokens, s.seconds = s.tokens*speedDecay+tokens, s.seconds*speedDecay+took.Seconds()
	}
}

func (s *speed) perSecond() float64 { return s.tokens / s.seconds }
