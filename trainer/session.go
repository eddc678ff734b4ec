package trainer

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Reason is why a session ended.
type Reason string

// The reasons of Handler.Gone.
const (
	// GoneBye is a trainer that left cleanly.
	GoneBye Reason = "bye"
	// GoneEOF is a connection that ended without bye.
	GoneEOF Reason = "eof"
	// GoneDied is a process that the kernel has seen end.
	GoneDied Reason = "died"
	// GoneSilent is a trainer that missed MissedHeartbeats heartbeats.
	GoneSilent Reason = "silent"
	// GoneSuperseded is a trainer that has connected again; its Hello follows.
	GoneSuperseded Reason = "superseded"
	// GoneGarbage is a peer that sent more than MaxLine without a newline.
	GoneGarbage Reason = "garbage"
	// GoneClosed is this side's own Close.
	GoneClosed Reason = "closed"
)

// Key names a trainer: one session lives for each.
type Key struct {
	Job    string
	Rank   int64
	Device string
}

// String prints "job/rank/device".
func (k Key) String() string { return fmt.Sprintf("%s/%d/%s", k.Job, k.Rank, k.Device) }

// Handler takes what trainers say; see the package's concurrency rule.
type Handler interface {
	// Hello is a trainer that connected; welcome has been sent.
	Hello(*Session, Hello)
	Ack(*Session, Ack)
	FloorRequest(*Session, Request)
	Report(*Session, Report)
	// Gone is the session's end, called exactly once after Hello.
	Gone(*Session, Reason)
}

// Session is one trainer's connection.
type Session struct {
	srv  *Server
	conn net.Conn
	peer peer
	out  *outbox
	in   *lines

	hello Hello
	key   Key
	heard atomic.Uint64 // lines read
	flood flood         // the reader's
	wg    sync.WaitGroup
	stop  chan struct{}
	done  chan struct{}

	mu     sync.Mutex
	reason Reason // why it ends; "" while it lives
}

// Key names the trainer.
func (s *Session) Key() Key { return s.key }

// Said is the hello that opened the session.
func (s *Session) Said() Hello { return s.hello }

// PID is the process as the kernel numbers it here; 0 when the kernel cannot
// say: another PID namespace, or TCP. The trainer's own word in Said is no
// substitute, since here that number may be another process.
func (s *Session) PID() int { return s.peer.PID }

// Done is closed after Handler.Gone has returned.
func (s *Session) Done() <-chan struct{} { return s.done }

// Send sends a Budget, Pace, Yield, Refused, Drain, Bye (Close follows a Bye) or an
// ErrorLine. It never waits for the trainer. The error is an *Error around ErrGone, ErrLate or ErrFull, or says
// which value cannot be written.
func (s *Session) Send(m Message) error {
	epoch := uint64(0)
	switch m := m.(type) {
	case Budget:
		epoch = m.Epoch
	case Pace, Yield, Refused, Drain, Bye, ErrorLine:
	default:
		return &Error{Op: "send " + m.Type(), Err: errors.New("a sidecar does not send it; the line is not sent")}
	}
	err := s.out.put(m)
	if err == nil {
		return nil
	}
	e := &Error{Op: "send " + m.Type() + " to " + s.key.String(), Epoch: epoch, Err: err}
	if errors.Is(err, ErrLate) || errors.Is(err, ErrFull) {
		e.Waited = s.out.waited()
	}
	return e
}

// Close ends the session; Gone follows with GoneClosed.
func (s *Session) Close() { s.end(GoneClosed) }

// end ends the session once, for the first reason given.
func (s *Session) end(why Reason) {
	s.mu.Lock()
	first := s.reason == ""
	if first {
		s.reason = why
	}
	s.mu.Unlock()
	if !first {
		return
	}
	close(s.stop)
	s.out.close()
	_ = s.conn.Close()
}

// run lives from hello to gone. It ends when the connection does, and waits for
// the session's other goroutines before it says so.
func (s *Session) run() {
	s.wg.Go(s.out.flush) // ends when end closes the outbox and the connection
	s.wg.Go(s.beat)      // ends when end closes stop
	if s.peer.pidfd != nil {
		s.wg.Go(s.watch) // ends when the process does or run ends its wait
	}
	h := s.srv.handler
	h.Hello(s, s.hello)
	s.end(s.read())
	if s.peer.pidfd != nil {
		_ = s.peer.pidfd.SetReadDeadline(time.Now()) // ends watch; the server keeps the pidfd
	}
	s.wg.Wait()
	h.Gone(s, s.reason)
}

// read takes lines until there are no more, and says why.
func (s *Session) read() Reason {
	for {
		line, err := s.in.next()
		if errors.Is(err, errTooLong) {
			s.fault(&LineError{What: "line", Where: "length", Rule: errTooLong.Error()})
			return GoneGarbage
		}
		if err != nil {
			if dead(s.peer.pidfd) {
				return GoneDied
			}
			return GoneEOF
		}
		s.heard.Add(1)
		if s.take(line) {
			return GoneBye
		}
		s.pace()
	}
}

// take handles one line; true says that the trainer has left.
func (s *Session) take(line []byte) bool {
	m, err := Decode(line) // m is nil where it is no message
	if s.flood.drops(m, s.srv.cfg.now()) {
		s.drop()
		return false
	}
	if err != nil {
		s.fault(err)
		return false
	}
	h := s.srv.handler
	switch m := m.(type) {
	case Ack:
		h.Ack(s, m)
	case Request:
		h.FloorRequest(s, m)
	case Report:
		h.Report(s, m)
	case Pong:
	case Bye:
		return true
	case ErrorLine:
		s.srv.cfg.Fault(s, fmt.Errorf("trainer: %s refused a line: %s %s: %s", s.key, m.What, m.Where, m.Rule))
	default:
		s.fault(&LineError{What: m.Type(), Where: "type", Rule: "a sidecar does not take it here"})
	}
	return false
}

// fault answers a bad line.
func (s *Session) fault(err error) {
	var bad *LineError
	if errors.As(err, &bad) {
		_ = s.out.put(bad.line()) // a full queue costs the answer, nothing else
	}
	s.srv.cfg.Fault(s, err)
}

// beat pings and ends the session of a trainer that says nothing for
// MissedHeartbeats pings. It counts its own ticks, not time, so that a sidecar
// that was itself stopped does not blame its trainers.
func (s *Session) beat() {
	tick := time.NewTicker(s.srv.cfg.Heartbeat)
	defer tick.Stop()
	var seq int64
	var last uint64
	missed := 0
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		now := s.heard.Load()
		if now != last {
			last, missed = now, 0
		} else if missed++; missed > MissedHeartbeats {
			s.end(GoneSilent)
			return
		}
		seq++
		_ = s.out.put(Ping{Seq: seq})
	}
}

// linger is how long the last lines of a process that has ended may take to be
// read: they are in the socket already.
const linger = 5 * time.Millisecond

// watch ends the session when its process ends, even while forked children hold
// the socket open.
func (s *Session) watch() {
	if waitDead(s.peer.pidfd) == nil {
		_ = s.conn.SetReadDeadline(time.Now().Add(linger))
	}
}
