package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Model is the modelled server. It is not safe for concurrent use.
type Model struct {
	cfg   Config
	pages *pages
	rng   *rand.Rand

	live    map[uint64]*sequence
	running []*sequence // in order of arrival
	waiting []*sequence // in order of arrival
	spare   []*sequence // ended ones, reused

	now     time.Duration
	endsAt  time.Duration // of the running step
	inStep  bool
	pending bool // something changed since an idle model last looked at its queue
	events  []Event
	count   Stats // counters only
}

// New returns an idle model at time 0. The seed decides the lengths of answers
// that requests do not say.
func New(cfg Config, seed uint64) (*Model, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Model{
		cfg:   cfg,
		pages: newPages(cfg.Pages, cfg.BlocksPerPage, cfg.BoundPages),
		rng:   rand.New(rand.NewPCG(seed, 0x6c756c6c)),
		live:  make(map[uint64]*sequence),
	}, nil
}

// Submit queues a request. It refuses one that can never run; the text is the
// client's. A request never joins a step that started before now, even when Step
// is called late. A length is drawn for every request, so that what one request
// says does not change another's.
func (m *Model) Submit(now time.Duration, r Request) error {
	drawn := m.drawLength()
	switch {
	case r.PromptTokens < 1:
		return fmt.Errorf("the prompt has %d tokens, want at least 1", r.PromptTokens)
	case r.PromptTokens >= m.cfg.MaxModelLen:
		return fmt.Errorf("the prompt has %d tokens, want fewer than the model's length of %d", r.PromptTokens, m.cfg.MaxModelLen)
	case m.live[r.ID] != nil:
		return fmt.Errorf("request %d: is live already, want an id of its own", r.ID)
	}
	natural := drawn
	if r.OutputTokens > 0 {
		natural = r.OutputTokens
	}
	s := m.newSequence()
	s.id, s.prompt, s.arrived = r.ID, r.PromptTokens, now
	s.target, s.reason = answerLength(r, natural, m.cfg.MaxModelLen)
	m.live[r.ID] = s
	m.waiting = append(m.waiting, s)
	m.changed(now)
	return nil
}

// Abort ends a request wherever it is and frees its pages at once: the events
// are its Unmaps. An unknown id, perhaps one that has just ended, is nothing.
// The step that is running takes as long as it would have.
func (m *Model) Abort(now time.Duration, id uint64) []Event {
	m.changed(now)
	m.events = m.events[:0]
	s := m.live[id]
	if s == nil {
		return nil
	}
	if s.running {
		m.running = without(m.running, s)
	} else {
		m.waiting = without(m.waiting, s)
	}
	m.release(m.now, s)
	m.forget(s)
	m.count.Aborted++
	return m.events
}

// SetBound changes how many pages may be mapped, from 0 to all of the pool. A
// rise counts from the next step on, which an idle model starts at once; a fall
// takes nothing away (see the package comment).
func (m *Model) SetBound(now time.Duration, pages int) {
	m.pages.bound = min(max(pages, 0), m.cfg.Pages)
	m.changed(now)
}

// NextAt is when Step has something to do; false while nothing can happen
// without a call of Submit, Abort or SetBound.
func (m *Model) NextAt() (time.Duration, bool) {
	switch {
	case m.inStep:
		return m.endsAt, true
	case m.pending && len(m.waiting) > 0:
		return m.now, true
	}
	return 0, false
}

// Step does what is due at now: it ends the running step, if its time has come,
// and starts the next. At most one step ends in a call, so the caller can make
// its memory real before it asks for the next. Nothing due gives nil.
func (m *Model) Step(now time.Duration) []Event {
	due, ok := m.NextAt()
	if !ok || due > now {
		return nil
	}
	m.events = m.events[:0]
	at := due
	if now-due > m.cfg.CatchUp {
		at = now
		m.count.Rebased++
	}
	m.now = max(m.now, at)
	if m.inStep {
		m.endStep(at)
	}
	m.startStep(at)
	return m.events
}

// Stats costs time in proportion to the waiting requests.
func (m *Model) Stats() Stats {
	s := m.count
	s.Running, s.Waiting = len(m.running), len(m.waiting)
	s.MappedPages, s.BoundPages, s.UsedBlocks = m.pages.mapped, m.pages.bound, m.pages.blocks
	unmet := 0
	for _, w := range m.waiting {
		unmet += m.cfg.blocksFor(w.known())
	}
	for _, r := range m.running {
		unmet += max(0, m.cfg.blocksFor(r.known())-len(r.pages))
	}
	unmetPages := (unmet + m.cfg.BlocksPerPage - 1) / m.cfg.BlocksPerPage
	s.ShortPages = max(0, s.MappedPages+unmetPages-s.BoundPages)
	return s
}

// changed moves the model's time on, never back, and wakes an idle model.
func (m *Model) changed(now time.Duration) {
	m.now = max(m.now, now)
	m.pending = true
}

// drawLength draws from the geometric distribution with the configured mean.
func (m *Model) drawLength() int {
	mean := float64(m.cfg.MeanOutputTokens)
	if mean <= 1 {
		return 1
	}
	u := 1 - m.rng.Float64() // in (0, 1]
	return 1 + int(math.Log(u)/math.Log1p(-1/mean))
}

func (m *Model) newSequence() *sequence {
	if n := len(m.spare); n > 0 {
		s := m.spare[n-1]
		m.spare = m.spare[:n-1]
		return s
	}
	return &sequence{}
}

// forget drops a sequence that holds no page; its memory is used again.
func (m *Model) forget(s *sequence) {
	delete(m.live, s.id)
	*s = sequence{pages: s.pages[:0]}
	m.spare = append(m.spare, s)
}

func without(list []*sequence, s *sequence) []*sequence {
	i := slices.Index(list, s)
	return slices.Delete(list, i, i+1)
}
