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
	// Pool, when above 0, is the engine's whole KV cache. No request needs more,
	// whatever its client asks for.
	Pool Bytes
	// Horizons are how far it looks; each is learned by itself. Aim changes one.
	Horizons []time.Duration
	// Lead counts what live requests may grow by within the first horizon as needed
	// now: reports of tokens come late, and a block is taken before they are seen.
	Lead bool
}

// Validate names the key, the value and the rule of the first thing wrong.
func (c ForecastConfig) Validate() error {
	if c.Layout.PerToken+c.Layout.Windowed <= 0 {
		return errors.New("forecast: layout: got 0 B a token, want more; read it from a config.json, an engine, or give it by hand")
	}
	if c.MaxModelLen < 0 {
		return fmt.Errorf("forecast: max_model_len: got %d, want 0 (unknown) or more", c.MaxModelLen)
	}
	if c.Pool < 0 {
		return fmt.Errorf("forecast: pool: got %v, want 0 (unknown) or more", c.Pool)
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
	// Model and Tier tell kinds of answers apart; either may be empty.
	Model, Tier string
	// PromptBytes is the length of the prompt's text, PromptTokens its exact count
	// where that is known, which replaces the estimate.
	PromptBytes, PromptTokens int
	// ToolBytes are those of PromptBytes that describe tools, Media what it has beside.
	ToolBytes int
	Media     Media
	// Prefix marks the prompt's beginning, in order; nil where nothing is known to be
	// shared. It is read until the request ends.
	Prefix []Mark
	// MaxTokens is the answer's limit, 0 none; Sequences the answers, 0 is 1.
	MaxTokens, Sequences int
	// Need, when above 0, is the request's KV at its end and replaces every estimate.
	Need Bytes
	// Answer is the tokens that each answer will have, where that is known; 0 is
	// unknown.
	Answer int
}

func (a *Asked) content() Content {
	return Content{Bytes: a.PromptBytes, ToolBytes: a.ToolBytes, Media: a.Media}
}

// Usage is what a request took by the server's own word; 0 is unknown. CachedTokens
// are those of PromptTokens that it found cached.
type Usage struct{ PromptTokens, CachedTokens, OutputTokens int }

// Active is one request that a Forecaster counts.
type Active struct {
	asked   Asked
	limit   int // tokens of one sequence, 0 unknown
	output  int // tokens of all sequences
	arrived time.Duration
	moved   time.Duration
	held    Bytes
	came    Bytes  // what it counts as among arrivals
	met     Bytes  // in common with others as it came
	turn    uint64 // of all arrivals
	index   int
	lengths *Lengths

	perToken float64  // of its marks: bytes of text, or 1
	shared   *sharing // nil where it counts whole
	common   Bytes    // in common with those that were there before it
}

// Held is what the request needs now by itself, its growth ahead included.
func (r *Active) Held() Bytes { return r.held }

// Forecaster predicts, for each of its horizons, the distribution of the largest
// KV need within it: the requests that live now, their growth and their ends by
// the survival of answers, and those that will arrive. Every horizon's levels
// are corrected by what came of past forecasts.
//
// Memory is O(1) a request; Progress allocates nothing.
type Forecaster struct {
	cfg       ForecastConfig
	prompts   *Prompts
	answers   *Answers
	rates     *Rates
	sizes     *Lengths // needs at arrival, in units of a token's bytes
	needs     needs    // the same, of late and in blocks, for the price of a reserve
	flow      float64  // arrivals a second
	turns     uint64   // requests so far
	ranks     ranks
	live      []*Active
	need      Bytes // sum less saved
	sum       Bytes // of what each holds by itself
	saved     Bytes // by what prompts have in common
	sharings  map[string]*sharing
	counted   found // by the engine's counters
	speed     speed
	residence float64 // seconds of a request in the engine
	looks     []lookout
}

// NewForecaster starts every model from its prior.
func NewForecaster(c ForecastConfig) (*Forecaster, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	f := &Forecaster{
		cfg: c, prompts: NewPrompts(), answers: NewAnswers(), rates: NewRates(c.Horizons), sizes: NewLengths(), needs: newNeeds(c.Layout.Block()),
		ranks: newRanks(), speed: speed{tokens: priorTokensPerSecond, seconds: 1}, residence: priorResidence.Seconds(), looks: make([]lookout, len(c.Horizons)),
		sharings: make(map[string]*sharing),
	}
	f.sizes.keep = sizeDecay
	for i, h := range c.Horizons {
		f.looks[i] = lookout{horizon: h, levels: newRecalibration(), usual: newUsual()}
	}
	return f, nil
}

// Layout is how the engine lays tokens out.
func (f *Forecaster) Layout() Layout { return f.cfg.Layout }

// Need is the KV of all live requests, what they share counted once.
func (f *Forecaster) Need() Bytes { return f.need }

// Live is the number of requests that count.
func (f *Forecaster) Live() int { return len(f.live) }

// Aim makes the i-th horizon that long. What was learned of the old one stands
// as the prior of the new.
func (f *Forecaster) Aim(i int, horizon time.Duration) { f.looks[i].aim(horizon) }

// Horizon is the i-th horizon.
func (f *Forecaster) Horizon(i int) time.Duration { return f.looks[i].horizon }

// Clock says that it was so late in the day at a time, on a clock that goes by the
// habits of who sends requests. Told again it may differ: a clock is set, or summer ends.
func (f *Forecaster) Clock(at, ofDay time.Duration) { f.rates.Clock(at, ofDay) }

// Arrive counts a request from now on. Times never go back.
func (f *Forecaster) Arrive(at time.Duration, a Asked) *Active {
	f.settle(at)
	perToken := 1.0
	if a.PromptTokens <= 0 {
		a.PromptTokens = f.prompts.Tokens(a.Model, a.content())
		perToken = f.prompts.BytesPerToken(a.Model)
	}
	a.Sequences, a.PromptTokens = min(max(a.Sequences, 1), f.mostSequences()), max(a.PromptTokens, 1)
	f.turns++
	r := &Active{asked: a, limit: max(a.MaxTokens, 0), arrived: at, moved: at, turn: f.turns, index: len(f.live), perToken: perToken}
	if most := f.cfg.MaxModelLen; most > 0 {
		r.asked.PromptTokens = min(a.PromptTokens, most)
		room := max(1, most-r.asked.PromptTokens)
		if r.limit == 0 || r.limit > room {
			r.limit = room
		}
	}
	r.lengths = f.answers.Class(a.Model, a.Tier, a.MaxTokens, r.asked.PromptTokens)
	f.live = append(f.live, r)
	r.held = f.holds(r)
	f.sum += r.held
	f.join(r)
	if r.met = r.common; r.met > 0 {
		f.counted.pending += f.inCommon(r.met)
		f.save(r.shared)
	}
	f.show()
	r.came = f.Adds(r)
	f.rates.Add(at)
	f.sizes.Learn(f.sized(r))
	f.needs.add(f.needs.bin(r.came))
	return r
}

// sized is what a request came with, in units of a token's bytes.
func (f *Forecaster) sized(r *Active) int { return int(r.came / f.tokenBytes()) }

// Progress takes a request's total of generated tokens, never beyond its limit;
// a total that went back is left alone.
func (f *Forecaster) Progress(at time.Duration, r *Active, outputTokens int) {
	if r.limit > 0 {
		outputTokens = int(min(float64(outputTokens), float64(r.limit)*float64(r.asked.Sequences)))
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

// Finish stops counting a request and learns from it: its prompt's tokens, its
// answer's length (by what was seen where usage does not say) and how long it
// was there.
func (f *Forecaster) Finish(at time.Duration, r *Active, u Usage) {
	if r.index < 0 {
		return
	}
	if u.PromptTokens > 0 {
		f.learnFound(r.asked.Model, r.met, min(u.CachedTokens, u.PromptTokens))
	}
	f.drop(at, r)
	if r.met > 0 {
		f.counted.expect(f.inCommon(r.met))
	}
	f.prompts.Learn(r.asked.Model, r.asked.content(), u.PromptTokens)
	if u.OutputTokens <= 0 {
		u.OutputTokens = r.output
	}
	f.answers.Learn(r.asked.Model, r.asked.Tier, r.asked.MaxTokens, r.asked.PromptTokens, u.OutputTokens/r.asked.Sequences)
	f.residence += residenceGain * ((at - r.arrived).Seconds() - f.residence)
}

// Refuse stops counting a request that the engine would not run, and forgets that
// it came: what it asked for says nothing about what is to come.
func (f *Forecaster) Refuse(at time.Duration, r *Active) {
	if r.index < 0 {
		return
	}
	f.Drop(at, r)
	f.rates.Remove(r.arrived)
	f.sizes.forget(f.sized(r), int(f.turns-r.turn))
	f.needs.take(r.came)
}

// Drop stops counting a request that never ran in the engine, without learning from
// it. A second call does nothing.
func (f *Forecaster) Drop(at time.Duration, r *Active) {
	if r.index < 0 {
		return
	}
	f.drop(at, r)
}

func (f *Forecaster) drop(at time.Duration, r *Active) {
	f.settle(at)
	last := len(f.live) - 1
	f.live[r.index] = f.live[last]
	f.live[r.index].index = r.index
	f.live[last] = nil
	f.live = f.live[:last]
	r.index = -1
	f.sum -= r.held
	f.counted.pending -= f.inCommon(r.met)
	f.leave(r)
	f.show()
}
