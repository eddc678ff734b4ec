package trainer

import (
	"fmt"
	"time"
)

const (
	// mostPerSecond bounds each kind of line that a session may send for advice or
	// in error: requests, reports, and lines that are answered with an error. A
	// trainer sends one report a second and has one request open at a time.
	mostPerSecond = 50
	// mostBad is the same for bad lines and error lines: a trainer of another
	// version may not understand a burst of ours.
	mostBad = 100
	// mostLines bounds the lines of all kinds that are read in a second; what is
	// beyond waits in the socket. Orders and their acks are far fewer.
	mostLines = 1000
)

// rate counts what came in the present second.
type rate struct {
	began time.Time
	n     int
}

// over counts one more, and says whether it is beyond the most of its second.
func (r *rate) over(most int, now time.Time) bool {
	if now.Sub(r.began) >= time.Second {
		r.began, r.n = now, 0
	}
	r.n++
	return r.n > most
}

// left is what remains of the present second.
func (r *rate) left(now time.Time) time.Duration { return time.Second - now.Sub(r.began) }

// flood keeps one session from taking the time of all others. It is for the
// session's reader.
type flood struct {
	requests, reports, bad, lines, said rate
	dropped                             int // since it was last said
}

// drops says that m is one too many of its kind. Acks, pongs and byes always
// pass: orders wait for the first, and the session lives by the second.
func (f *flood) drops(m Message, now time.Time) bool {
	switch m.(type) {
	case Request:
		return f.requests.over(mostPerSecond, now)
	case Report:
		return f.reports.over(mostPerSecond, now)
	case Ack, Pong, Bye:
		return false
	}
	return f.bad.over(mostBad, now)
}

// drop counts a line that goes no further, and says so once a second.
func (s *Session) drop() {
	s.flood.dropped++
	if s.flood.said.over(1, s.srv.cfg.now()) {
		return
	}
	n := s.flood.dropped
	s.flood.dropped = 0
	s.srv.cfg.Fault(s, fmt.Errorf("trainer: %s sends more than %d requests, %d reports or %d bad lines a second, %d of them dropped so far; acks and pongs are still taken",
		s.key, mostPerSecond, mostPerSecond, mostBad, n))
}

// pace lets a session that sends without end wait for its next second. Nothing
// is lost: its lines stay in the socket.
func (s *Session) pace() {
	now := s.srv.cfg.now()
	if !s.flood.lines.over(mostLines, now) {
		return
	}
	wait := time.NewTimer(s.flood.lines.left(now))
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-s.stop:
	}
	s.flood.lines = rate{}
}
