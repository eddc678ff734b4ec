package trainer

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

func (s *Server) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of file descriptors: the next one may fit.
			s.cfg.Fault(nil, &Error{Op: "accept", Err: err})
			time.Sleep(10 * time.Millisecond)
			continue
		}
		s.mu.Lock()
		ok := !s.closed
		if ok {
			s.conns[conn] = true
			s.wg.Go(func() { s.serve(conn) }) // ends with the connection
		}
		s.mu.Unlock()
		if !ok {
			_ = conn.Close()
		}
	}
}

// serve is one connection from accept to its end.
func (s *Server) serve(conn net.Conn) {
	sess := s.greet(conn)
	if sess == nil {
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
		_ = conn.Close()
		return
	}
	sess.run()
	s.mu.Lock()
	if s.sessions[sess.key] == sess {
		delete(s.sessions, sess.key)
	}
	s.mu.Unlock()
	close(sess.done)
}

// greet checks who is there and waits for hello; nil when there is no session.
func (s *Server) greet(conn net.Conn) *Session {
	sess := &Session{
		srv: s, conn: conn, out: newOutbox(conn), in: newLines(conn),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	refuse := func(e *LineError) *Session {
		if b, err := Encode(e.line()); err == nil {
			_ = conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			_, _ = conn.Write(b)
		}
		sess.peer.close()
		s.cfg.Fault(nil, e)
		return nil
	}
	if e := s.check(sess); e != nil {
		return refuse(e)
	}
	_ = conn.SetReadDeadline(time.Now().Add(s.cfg.HelloTimeout))
	for bad := 0; ; bad++ {
		line, err := sess.in.next()
		if err != nil {
			return refuse(&LineError{What: "hello", Where: "line", Rule: fmt.Sprintf("none came: %v", err)})
		}
		if bad >= mostBad {
			return refuse(&LineError{What: "hello", Where: "line", Rule: fmt.Sprintf("none came in %d lines; the connection is closed", bad)})
		}
		e := s.accepts(sess, line)
		if e == nil {
			break
		}
		if e.Where == "token" || e.Where == "job" && e.What == "session" {
			return refuse(e)
		}
		b, _ := Encode(e.line())
		_ = conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		if _, err := conn.Write(b); err != nil {
			return refuse(e)
		}
		s.cfg.Fault(nil, e)
	}
	_ = conn.SetDeadline(time.Time{})
	return sess
}

// check refuses users that are not allowed. TCP peers have no uid: their token
// is checked in hello.
func (s *Server) check(sess *Session) *LineError {
	u, ok := sess.conn.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := u.SyscallConn()
	if err == nil {
		ctl := raw.Control(func(fd uintptr) { sess.peer, err = s.cfg.peer(fd) })
		err = errors.Join(err, ctl)
	}
	if err != nil {
		return &LineError{What: "connect", Where: "uid", Rule: fmt.Sprintf("unknown: %v", err)}
	}
	if !slices.Contains(s.cfg.AllowedUIDs, sess.peer.UID) {
		return &LineError{What: "connect", Where: "uid",
			Rule: fmt.Sprintf("got %d, want one of %v", sess.peer.UID, s.cfg.AllowedUIDs)}
	}
	return nil
}

// DoctorJob is the job of a hello by which `python -m lull.doctor` asks what a
// trainer would hear; the Handler answers it and makes no trainer of it.
const DoctorJob = "lull-doctor"

// HelloFirst is the rule that a line before hello breaks. A doctor learns from it
// that it may say hello: older sidecars did not name its job.
const HelloFirst = "hello comes first; of the job " + DoctorJob + " it makes no trainer"

// accepts makes sess the session of the trainer that line names, and welcomes
// it; otherwise it says why not.
func (s *Server) accepts(sess *Session, line []byte) *LineError {
	m, err := Decode(line)
	if err != nil {
		var bad *LineError
		errors.As(err, &bad)
		return bad
	}
	h, ok := m.(Hello)
	if !ok {
		return &LineError{What: m.Type(), Where: "type", Rule: HelloFirst}
	}
	if h.Version != Version {
		return &LineError{What: "hello", Where: "version", Rule: fmt.Sprintf("got %d, want %d", h.Version, Version)}
	}
	if _, unix := sess.conn.(*net.UnixConn); !unix {
		if subtle.ConstantTimeCompare([]byte(h.Token), []byte(s.cfg.Token)) != 1 {
			return &LineError{What: "hello", Where: "token", Rule: "wrong, want the sidecar's trainer.token"}
		}
	}
	h.Token = ""
	sess.hello, sess.key = h, Key{h.Job, h.Rank, h.Device}
	return s.claim(sess)
}

// claim puts sess in the place of an older session of the same trainer, which
// is gone before this one says hello. A living process keeps its name, also
// after its session: see own.
func (s *Server) claim(sess *Session) *LineError {
	for {
		s.mu.Lock()
		old := s.sessions[sess.key]
		if s.closed {
			s.mu.Unlock()
			return &LineError{What: "session", Where: "job", Rule: "the sidecar closes"}
		}
		if old == nil {
			if e := s.own(sess); e != nil {
				s.mu.Unlock()
				return e
			}
			// Under the lock, so that welcome is the first line whoever sends next.
			err := sess.out.put(Welcome{
				Version: Version, Session: s.cfg.Session, Heartbeat: s.cfg.Heartbeat, Lease: s.cfg.Lease,
			})
			s.sessions[sess.key] = sess
			delete(s.conns, sess.conn)
			s.mu.Unlock()
			_ = err // a peer that has gone already is found by the reader
			return nil
		}
		s.mu.Unlock()
		if a := old.peer.PID; a != 0 && a != sess.peer.PID && !dead(old.peer.pidfd) {
			return taken(sess.key, a)
		}
		old.end(GoneSuperseded)
		<-old.done
	}
}
