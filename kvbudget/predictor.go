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
	// priorResidence is a request's time in the engine before any was seen.
	priorResidence = 2 * time.Second
	// residenceGain is the weight of one finished request.
	residenceGain = 0.05
)

// Spec is what is known of a request when it arrives.
type Spec struct {
	PromptBytes int
	// PromptTokens, when above 0, is the prompt's exact count and replaces the
	// estimate from its bytes.
	PromptTokens int
	// MaxTokens is the answer's limit, 0 when none was given.
	MaxTokens int
	// Sequences is the answers asked for; 0 is 1.
	Sequences int
	// Need, when above 0, is the request's KV at its end and replaces every
	// estimate.
	Need Bytes
}

// Live is one request that counts. Its fields are the predictor's; callers keep
// the pointer and read.
type Live struct {
	spec    Spec
	prompt  int // tokens
	output  int // tokens over all sequences
	limit   int // tokens a sequence, 0 unknown
	arrived time.Duration
	moved   time.Duration // of the last progress
	mean    Bytes         // expected need within the horizon
	came    Bytes         // the need that it counts as among arrivals
	spread  int64         // variance in tokens², times spreadUnit
}

// spreadUnit keeps fractions of tokens² in whole numbers, so that sums are
// exact and never drift.
const spreadUnit = 16

const (
	// mostNeed is the most that one request may need where the pool is not known:
	// far above any device, and far from overflowing a sum over requests.
	mostNeed Bytes = 1 << 48
	// mostSpread is the largest variance of one request, likewise: a standard
	// deviation of four million tokens.
	mostSpread = 1 << 48
)

// Mean is the request's expected need within the horizon it was last counted
// with.
func (r *Live) Mean() Bytes { return r.mean }

// Predictor is the forecast of one engine, per device.
type Predictor struct {
	Geometry    Geometry
	MaxModelLen int
	// Pool, when above 0, is the engine's whole KV cache. No request needs more,
	// whatever its client asks for.
	Pool     Bytes
	Ratio    Ratio
	Lengths  *Lengths
	Arrivals Arrivals

	needs           needs   // of requests as they came
	tokens, seconds float64 // decayed, of decoding
	residence       float64 // seconds
	live            int
	mean            Bytes
	spread          int64
}

// NewPredictor starts every model from its prior; a maxModelLen of 0 is unknown.
func NewPredictor(g Geometry, maxModelLen int) *Predictor {
	return &Predictor{
		Geometry: g, MaxModelLen: maxModelLen, Ratio: NewRatio(), Lengths: NewLengths(), needs: newNeeds(g),
		tokens: priorTokensPerSecond, seconds: 1, residence: priorResidence.Seconds(),
	}
}

// Admit counts a request from now on; horizon is how far its growth is looked
// at. It also counts as an arrival.
func (p *Predictor) Admit(at time.Duration, spec Spec, horizon time.Duration) *Live {
	spec.Sequences = min(max(spec.Sequences, 1), p.mostSequences())
	r := &Live{spec: spec, prompt: p.Ratio.Tokens(spec.PromptBytes), limit: spec.MaxTokens, arrived: at, moved: at}
	if spec.PromptTokens > 0 {
		r.prompt = spec.PromptTokens
	}
	if p.MaxModelLen > 0 {
		room := max(1, p.MaxModelLen-r.prompt)
		if r.limit == 0 || r.limit > room {
			r.limit = room
		}
		r.prompt = min(r.prompt, p.MaxModelLen)
	}
	p.live++
	p.count(r, horizon)
	r.came = r.mean
	p.Arrivals.Add(at, r.came)
	p.needs.add(p.needs.bin(r.came))
	return r
}

// Progress takes a request's total of generated tokens; a total that went back
// is left alone.
func (p *Predictor) Progress(at time.Duration, r *Live, outputTokens int, horizon time.Duration) {
	if outputTokens <= r.output {
		return
	}
	if gap := (at - r.moved).Seconds(); r.output > 0 && gap > 0 {
		p.tokens = p.tokens*speedDecay + float64(outputTokens-r.output)/float64(r.spec.Sequences)
		p.seconds = p.seconds*speedDecay + gap
	}
	r.output, r.moved = outputTokens, at
	p.uncount(r)
	p.count(r, horizon)
}

// Finish stops counting a request. Token counts of 0 are unknown; then the
// generated tokens seen so far teach the answer's length. A request that never
// ran is dropped with Drop instead.
func (p *Predictor) Finish(at time.Duration, r *Live, promptTokens, outputTokens int) {
	p.Drop(r)
	p.Ratio.Learn(r.spec.PromptBytes, promptTokens)
	if outputTokens == 0 {
		outputTokens = r.output
	}
	p.Lengths.Learn(outputTokens / r.spec.Sequences)
	p.residence += residenceGain * ((at - r.arrived).Seconds() - p.residence)
}

// Refuse stops counting a request that the engine would not run, and forgets that
// it came: what it asked for says nothing about what is to come.
func (p *Predictor) Refuse(r *Live) {
	p.Drop(r)
	p.Arrivals.Remove(r.arrived, r.came)
	p.needs.take(r.came)
}

// Drop stops counting a request without learning from it.
func (p *Predictor) Drop(r *Live) {
	p.uncount(r)
	p.live--
}

// Need is the expected need of the live requests within their horizon.
func (p *Predictor) Need() Bytes { return p.mean }

// Demand is the bytes that cover, with probability q, the growth of the live
// requests and, added to it, the need that arrives within the horizon. The
// requests grow independently, so their variances add (normal quantile).
func (p *Predictor) Demand(at, horizon time.Duration, q float64) Bytes {
	return p.Grown(q) + p.whole(p.Arrivals.Quantile(at, horizon, q))
}

// Grown is the part of Demand that the live requests are given.
func (p *Predictor) Grown(q float64) Bytes {
	if p.spread <= 0 {
		return p.mean
	}
	sd := math.Sqrt(float64(p.spread)/spreadUnit) * float64(p.Geometry.BytesPerToken)
	return p.mean + Bytes(normalQuantile(q)*sd)
}

// whole rounds to the nearest number of blocks: a rate that fades must reach 0,
// or its last bytes would keep a block for ever.
func (p *Predictor) whole(b Bytes) Bytes {
	block := p.Geometry.Block()
	return (b + block/2).FloorTo(block)
}

// Expected is the mean demand at the horizon's end, when live requests leave
// and new ones come: the transient mean of an M/M/∞ queue,
// now·e^(-h/T) + rate·T·(1-e^(-h/T)) with T the learned time in the engine
// (Gross and Harris, Fundamentals of Queueing Theory, 2.11).
func (p *Predictor) Expected(at, horizon time.Duration) Bytes {
	stay := math.Exp(-horizon.Seconds() / p.residence)
	_, rate := p.Arrivals.Rate(at)
	return p.whole(Bytes(float64(p.mean)*stay + rate*p.residence*(1-stay)))
}

// Leaving is the probability that no live request ends within a time, and what
// they give back on average if one does, less what they grow by; not below 0.
// They leave as in Expected, each by itself.
func (p *Predictor) Leaving(within time.Duration) (none float64, some Bytes) {
	each := -math.Expm1(-within.Seconds() / p.residence)
	none = math.Exp(-float64(p.live) * each)
	if none >= 1 {
		return 1, 0
	}
	left := float64(p.mean) * each / (1 - none)
	grown := float64(p.live) * p.TokensPerSecond() * within.Seconds() * float64(p.Geometry.BytesPerToken)
	return none, Bytes(max(0, left-grown))
}

// AtEnd is the most that a request may need at its end: its prompt and its
// limit, or the 99th percentile of answers when it has none.
func (p *Predictor) AtEnd(r *Live) Bytes {
	if r.spec.Need > 0 {
		return min(r.spec.Need, p.most())
	}
	answer := r.spec.MaxTokens
	if answer == 0 {
		answer = max(p.Lengths.Quantile(0.99), r.output/r.spec.Sequences)
	}
	if r.limit > 0 {
		answer = min(answer, r.limit)
	}
	return p.request(float64(r.prompt) + float64(answer)*float64(r.spec.Sequences))
}

// request is the bytes of one request of that many tokens, at most the pool. The
// tokens are a float, since an absurd count of a client's overflows an integer.
func (p *Predictor) request(tokens float64) Bytes {
	most := p.most()
	if tokens*float64(p.Geometry.BytesPerToken) >= float64(most) {
		return most
	}
	return min(p.Geometry.Request(int(tokens)), most)
}

func (p *Predictor) most() Bytes {
	if p.Pool > 0 {
		return p.Pool
	}
	return mostNeed
}

// mostSequences is how many the pool has a token for; the rest wait in the engine.
func (p *Predictor) mostSequences() int {
	return max(1, int(p.most()/max(p.Geometry.BytesPerToken, 1)))
}

// TokensPerSecond is the learned decoding speed of one sequence.
func (p *Predictor) TokensPerSecond() float64 { return p.tokens / p.seconds }

// Live is the number of requests that count.
func (p *Predictor) Live() int { return p.live }

func (p *Predictor) count(r *Live, horizon time.Duration) {
	if r.spec.Need > 0 {
		r.mean, r.spread = min(r.spec.Need, p.most()), 0
		p.mean += r.mean
		return
	}
	n := r.spec.Sequences
	most := int(math.Ceil(p.TokensPerSecond() * horizon.Seconds()))
	more, variance := p.Lengths.More(r.output/n, r.limit, most)
	r.mean = p.request(float64(r.prompt) + float64(r.output) + math.Ceil(more*float64(n)))
	r.spread = int64(min(variance*float64(n)*spreadUnit, mostSpread))
	if r.mean >= p.most() {
		r.spread = 0 // it cannot take more
	}
	p.mean += r.mean
	p.spread += r.spread
}

func (p *Predictor) uncount(r *Live) {
	p.mean -= r.mean
	p.spread -= r.spread
}
