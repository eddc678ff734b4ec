package model

import (
	"slices"
	"time"
)

// startStep chooses what the next step computes and takes the pages for it.
func (m *Model) startStep(at time.Duration) {
	m.pending = false
	budget := m.cfg.MaxBatchedTokens
	budget, preempted := m.scheduleRunning(at, budget)
	if !preempted {
		m.admit(at, budget)
	}
	if len(m.running) == 0 {
		m.inStep = false
		return
	}
	took := m.cfg.Coefficients.Time(m.batch())
	m.endsAt = at + time.Duration(float64(took)/m.cfg.TimeScale)
	m.inStep = true
	m.count.Steps++
}

// scheduleRunning gives running requests their tokens, in order of arrival; when
// pages are short the last-come give way. It returns the tokens that are left.
func (m *Model) scheduleRunning(at time.Duration, budget int) (left int, preempted bool) {
	for i := 0; i < len(m.running); i++ {
		s := m.running[i]
		s.chunk = min(s.known()-s.computed, budget)
		for !m.fits(s, s.computed+s.chunk) {
			last := m.running[len(m.running)-1]
			m.running = m.running[:len(m.running)-1]
			m.preempt(at, last)
			preempted = true
			if last == s {
				return budget, preempted
			}
		}
		m.grow(at, s, s.computed+s.chunk)
		budget -= s.chunk
	}
	return budget, preempted
}

// admit moves waiting requests to the running ones, in order of arrival, until
// one does not fit: nobody overtakes it.
func (m *Model) admit(at time.Duration, budget int) {
	admitted := 0
	for _, s := range m.waiting {
		if s.arrived > at {
			m.pending = true // this step is being started late; the next may take it
			break
		}
		over := m.pages.mapped > m.pages.bound
		if over || budget == 0 || len(m.running) == m.cfg.MaxSeqs || !m.fits(s, s.known()) {
			break
		}
		s.chunk = min(s.known(), budget)
		budget -= s.chunk
		s.running = true
		m.running = append(m.running, s)
		m.emit(Event{At: at, Kind: Admitted, ID: s.id, N: s.out})
		m.grow(at, s, s.chunk)
		admitted++
	}
	m.waiting = slices.Delete(m.waiting, 0, admitted)
}

// batch sums up what the running sequences compute in this step.
func (m *Model) batch() Batch {
	var b Batch
	for _, s := range m.running {
		end := s.computed + s.chunk
		if s.chunk == 1 && s.out > 0 && s.computed > 0 {
			b.DecodeSeqs++
			b.DecodeTokens += end
			continue
		}
		b.PrefillTokens += s.chunk
		b.PrefillQuad += float64(end)*float64(end) - float64(s.computed)*float64(s.computed)
	}
	return b
}

// endStep books what the step computed. Requests that go on are told first, then
// the pages of those that end are given back, then those are told.
func (m *Model) endStep(at time.Duration) {
	ended := 0
	for _, s := range m.running {
		s.computed += s.chunk
		if s.computed < s.known() {
			continue // more prompt to come
		}
		if s.out == 0 {
			m.count.PromptTokens += uint64(s.prompt)
		}
		s.out++
		m.count.GeneratedTokens++
		if s.out == s.target {
			ended++
			continue
		}
		m.emit(Event{At: at, Kind: Token, ID: s.id, N: s.out})
	}
	if ended > 0 {
		m.endSequences(at)
	}
}

func (m *Model) endSequences(at time.Duration) {
	for _, s := range m.running {
		if s.out == s.target {
			m.release(at, s)
		}
	}
	kept := m.running[:0]
	for _, s := range m.running {
		if s.out < s.target {
			kept = append(kept, s)
			continue
		}
		m.emit(Event{At: at, Kind: Token, ID: s.id, N: s.out, Reason: s.reason})
		if s.reason == Stop {
			m.count.FinishedStop++
		} else {
			m.count.FinishedLength++
		}
		m.forget(s)
	}
	clear(m.running[len(kept):])
	m.running = kept
}

func (m *Model) preempt(at time.Duration, s *sequence) {
	m.count.Preemptions++
	m.emit(Event{At: at, Kind: Preempted, ID: s.id, N: s.out})
	m.release(at, s)
	s.running, s.computed, s.chunk = false, 0, 0
	m.waiting = slices.Insert(m.waiting, 0, s)
}

// fits says whether the sequence can have blocks for its first n tokens.
func (m *Model) fits(s *sequence, n int) bool {
	return m.cfg.blocksFor(n)-len(s.pages) <= m.pages.room()
}

// grow takes the blocks for the sequence's first n tokens, which fit.
func (m *Model) grow(at time.Duration, s *sequence, n int) {
	for len(s.pages) < m.cfg.blocksFor(n) {
		page, mapIt := m.pages.take()
		s.pages = append(s.pages, page)
		if mapIt {
			m.emit(Event{At: at, Kind: Map, ID: s.id, Page: int(page)})
		}
	}
}

// release gives all blocks of the sequence back.
func (m *Model) release(at time.Duration, s *sequence) {
	for _, page := range s.pages {
		if m.pages.give(page) {
			m.emit(Event{At: at, Kind: Unmap, ID: s.id, Page: int(page)})
		}
	}
	s.pages = s.pages[:0]
}

func (m *Model) emit(e Event) { m.events = append(m.events, e) }
