package reserve

import (
	"time"

	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
)

// server is an engine that takes whole blocks under its bound: requests wait in
// the order of their arrival until their prompt fits, running ones get a token
// every tbt, and one that has no room for its next block waits for it.
type server struct {
	w                *world
	bound, held      size.Bytes
	most             size.Bytes // ever held
	epoch            handover.Epoch
	waiting, running []*request
}

type request struct {
	id             handover.RequestID
	prompt, answer int
	out            int
	arrived        time.Duration
	first          time.Duration // of its first token
	held           size.Bytes
}

func (s *server) bytes(tokens int) size.Bytes {
	b := s.w.cfg.BlockTokens
	return size.Bytes((tokens+b-1)/b*b) * s.w.cfg.PerToken
}

func (s *server) setBound(o handover.SetBound) {
	if o.Epoch <= s.epoch {
		return
	}
	s.bound, s.epoch = o.Bytes, o.Epoch
	s.w.step(handover.BoundSet{At: s.w.now, Engine: engineID, Epoch: o.Epoch, Bound: s.bound, Held: s.held})
	s.admit()
}

// admit starts what fits, and judges how long it had to wait.
func (s *server) admit() {
	for len(s.waiting) > 0 {
		r := s.waiting[0]
		need := s.bytes(r.prompt)
		if s.held+need > s.bound && s.bound < s.w.pool { // the whole pool is all there is
			return
		}
		s.waiting = s.waiting[1:]
		r.held, s.held = need, s.held+need
		s.most = max(s.most, s.held)
		r.first = s.w.now + time.Duration(float64(r.prompt)/prefill*float64(time.Second))
		s.running = append(s.running, r)
		if wait := s.w.now - r.arrived; wait > 0 {
			s.w.waits++
			if wait > s.w.cfg.Slack {
				s.w.misses++
			}
		}
	}
}

// turn gives every running request its token.
func (s *server) turn() {
	var progress []handover.Progress
	var done []*request
	keep := s.running[:0]
	for _, r := range s.running {
		if s.w.now < r.first {
			keep = append(keep, r)
			continue
		}
		more := s.bytes(r.prompt+r.out+1) - r.held
		if more > 0 && s.held+more > s.bound && s.bound < s.w.pool {
			keep = append(keep, r)
			continue
		}
		r.held, s.held = r.held+more, s.held+more
		r.out++
		progress = append(progress, handover.Progress{ID: r.id, OutputTokens: r.out})
		if r.out >= r.answer {
			done = append(done, r)
			continue
		}
		keep = append(keep, r)
	}
	s.running, s.most = keep, max(s.most, s.held)
	if len(progress) > 0 {
		s.w.step(handover.Progressed{At: s.w.now, Counts: progress})
	}
	for _, r := range done {
		s.held -= r.held
		s.w.step(handover.Finished{At: s.w.now, ID: r.id, PromptTokens: r.prompt, OutputTokens: r.out})
	}
	s.admit()
	s.w.step(s.sample())
	s.w.after(tbt, s.turn)
}

// sample is what the engine says of itself, as the emulator does.
func (s *server) sample() handover.EngineSeen {
	short := size.Bytes(0)
	for _, r := range s.waiting {
		short += s.bytes(r.prompt)
	}
	if short > 0 {
		short = max(0, s.held+short-s.bound)
	}
	return handover.EngineSeen{
		At: s.w.now, Engine: engineID, Held: s.held, Needed: s.held, Bound: s.bound, BoundEpoch: s.epoch,
		Running: len(s.running), Waiting: len(s.waiting), Short: short,
	}
}
