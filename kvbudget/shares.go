package kvbudget

const (
	// mostSharing bounds the models whose prompts are compared; prompts of further
	// ones count whole.
	mostSharing = 32
	// foundPrior is how many tokens in common that were not found the beginning is
	// worth: nothing is saved before the engine has shown that it shares.
	foundPrior = 1000.0
	// foundDecay forgets by half after 70 later prompts with something in common.
	foundDecay = 0.99
)

// Mark is a place in a prompt, told without its text: prompts of one model whose
// marks have the same Sum begin alike up to there.
type Mark struct {
	// Upto is the prompt's text up to here at least: in bytes, or in tokens where
	// Asked.PromptTokens is given.
	Upto int
	Sum  uint64
}

// stretch is the part of prompts between two marks, as several live requests may
// have it in common.
type stretch struct {
	live  int
	bytes Bytes
}

// sharing is what the live prompts of one model have in common. An engine that finds
// a prompt's beginning in blocks of another live request takes no memory for it; where
// it finds it in blocks that nobody uses, those come into use, and the memory is
// needed all the same. Only the first is saved, and only as far as the engine is known
// to find it.
type sharing struct {
	stretches map[uint64]stretch
	live      int
	common    Bytes // what requests have of which another has it too, at its second and every further one
	saved     Bytes // of that, as counted in the need
	found     found // by usage
	told      bool  // usage has said what was found
}

// found is the share of the tokens in common that the engine found cached, by
// decayed sums.
type found struct {
	expected, hit float64
	pending       float64 // expected of requests that live: it may yet turn out that they never ran
}

func (f *found) expect(tokens float64) {
	f.expected, f.hit = f.expected*foundDecay+tokens, f.hit*foundDecay
}

// see takes tokens that were found. More than was expected had been cached without
// use.
func (f *found) see(tokens float64) { f.hit = min(f.hit+tokens, f.expected+f.pending) }

func (f *found) share() float64 { return f.hit / (f.expected + f.pending + foundPrior) }

// sharingOf is the model's, nil where there are too many.
func (f *Forecaster) sharingOf(model string) *sharing {
	if s, ok := f.sharings[model]; ok {
		return s
	}
	if len(f.sharings) >= mostSharing {
		return nil
	}
	s := &sharing{stretches: make(map[uint64]stretch)}
	f.sharings[model] = s
	return s
}

// Share counts what a live request has in common with others once. Arrive has
// done so; it undoes an Apart.
func (f *Forecaster) Share(r *Active) {
	if f.join(r) {
		f.show()
	}
}

// Apart counts a request whole again and nothing of others' as held by it: one that
// waits outside of the engine has no blocks there.
func (f *Forecaster) Apart(r *Active) {
	if f.leave(r) {
		f.show()
	}
}

// join puts the request's stretches beside the others'. Where estimates of the
// bytes of one differ, the least counts.
func (f *Forecaster) join(r *Active) bool {
	if r.shared != nil || r.index < 0 || len(r.asked.Prefix) == 0 || r.asked.Need > 0 || r.held >= f.most() {
		return false
	}
	s := f.sharingOf(r.asked.Model)
	if s == nil {
		return false
	}
	r.shared, r.common = s, 0
	s.live++
	before := Bytes(0)
	for _, m := range r.asked.Prefix {
		own := max(f.upto(r, m)-before, 0)
		before += own
		t := s.stretches[m.Sum]
		if t.live > 0 {
			if own < t.bytes {
				s.common -= Bytes(t.live-1) * (t.bytes - own)
				t.bytes = own
			}
			s.common += t.bytes
			r.common += t.bytes
		} else {
			t.bytes = own
		}
		t.live++
		s.stretches[m.Sum] = t
	}
	f.save(s)
	return true
}

// leave takes them away. What others have in common still stays with them.
func (f *Forecaster) leave(r *Active) bool {
	s := r.shared
	if s == nil {
		return false
	}
	r.shared, r.common = nil, 0
	for _, m := range r.asked.Prefix {
		t := s.stretches[m.Sum]
		if t.live--; t.live > 0 {
			s.common -= t.bytes
			s.stretches[m.Sum] = t
		} else {
			delete(s.stretches, m.Sum)
		}
	}
	f.save(s)
	if s.live--; s.live == 0 && !s.told { // anybody can name models
		delete(f.sharings, r.asked.Model)
	}
	return true
}

// upto is the bytes of the whole blocks that a prompt has up to a mark, in layers
// that keep every token. The last token is computed always, so its block is no
// other's.
func (f *Forecaster) upto(r *Active, m Mark) Bytes {
	block := f.cfg.Layout.blockTokens()
	tokens := min(int(float64(m.Upto)/r.perToken), r.asked.PromptTokens-1)
	return Bytes(max(tokens, 0)/block*block) * f.cfg.Layout.PerToken
}

// share is how much of what a model's prompts have in common is found: by usage,
// and before usage has told anything by the engine's counters.
func (f *Forecaster) share(s *sharing) float64 {
	if s.told {
		return s.found.share()
	}
	return f.counted.share()
}

// save counts what a model's prompts have in common in the need.
func (f *Forecaster) save(s *sharing) {
	saved := Bytes(f.share(s) * float64(s.common))
	f.saved += saved - s.saved
	s.saved = saved
}

// Adds is what a request adds to the need of those that were there before it.
func (f *Forecaster) Adds(r *Active) Bytes {
	if r.common == 0 {
		return r.held
	}
	return r.held - Bytes(f.share(r.shared)*float64(r.common))
}

// WouldAdd is the same of a request that is Apart, beside those that live now.
func (f *Forecaster) WouldAdd(r *Active) Bytes {
	if !f.join(r) {
		return f.Adds(r)
	}
	adds := f.Adds(r)
	f.leave(r)
	return adds
}

// inCommon is the tokens that a request had in common with others as it came.
func (f *Forecaster) inCommon(common Bytes) float64 {
	return float64(common) / float64(max(f.cfg.Layout.PerToken, 1))
}

// learnFound takes what usage says of a prompt that had something in common with
// others as it came. Usage that leaves it out teaches nothing until it has told once.
func (f *Forecaster) learnFound(model string, came Bytes, cached int) {
	s := f.sharings[model]
	if s == nil || came <= 0 || cached <= 0 && !s.told {
		return
	}
	tokens := f.inCommon(came)
	s.told = true
	s.found.expect(tokens)
	s.found.see(min(float64(max(cached, 0)), tokens))
	f.save(s)
	f.show()
}

// Found takes how many tokens of prompts the engine has found cached since the last
// call, of whatever model. It does not say whether others were using them.
func (f *Forecaster) Found(tokens uint64) {
	if f.counted.expected+f.counted.pending == 0 {
		return
	}
	f.counted.see(float64(tokens))
	for _, s := range f.sharings { // whole numbers: the order changes nothing
		f.save(s)
	}
	f.show()
}
