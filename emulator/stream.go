package emulator

import (
	"sync/atomic"
	"time"

	"github.com/lull-project/lull/emulator/model"
)

// stream is one live request between the engine, which raises a counter, and the
// client's goroutine, which catches up with it at its own speed.
type stream struct {
	request model.Request
	arrived time.Duration // since the engine began
	last    time.Duration // when the engine made the last token; the engine's own

	progress atomic.Uint64 // tokens << 2 | reason
	news     chan struct{} // holds one; a reader that was woken reads progress

	// Guarded by kv.mu: deeds to memory that the next token waits for, and the
	// progress that is told when there are none.
	deeds      int
	owed       int
	owedReason model.Reason
}

func newStream(r model.Request) *stream {
	return &stream{request: r, news: make(chan struct{}, 1)}
}

// advance tells that there are n tokens, and whether these are all.
func (s *stream) advance(n int, reason model.Reason) {
	s.progress.Store(uint64(n)<<2 | uint64(reason))
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// read returns how many tokens there are and why the answer ended, if it has.
func (s *stream) read() (tokens int, reason model.Reason) {
	p := s.progress.Load()
	return int(p >> 2), model.Reason(p & 3)
}
