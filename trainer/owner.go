package trainer

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// maxNames bounds the names of one process, each of which is kept, with open
// files, until the process has ended: one a device, and enough for many jobs.
const maxNames = 64

// own makes sess's process the owner of its name, or says why it cannot be. A
// name belongs to the process that said hello under it until that process has
// ended, session or not: a trainer that is silent or has said bye still holds
// bytes, and they would be nobody's if another took its name. A process that
// the kernel cannot name owns nothing. Call it with s.mu held, and with no
// session of that name.
func (s *Server) own(sess *Session) *LineError {
	s.forget()
	old, owned := s.owners[sess.key]
	if owned && old.PID != sess.peer.PID {
		return taken(sess.key, old.PID)
	}
	if n := s.names(sess.peer.PID); !owned && n >= maxNames {
		return &LineError{What: "session", Where: "job",
			Rule: fmt.Sprintf("process %d has said hello under %d names, want at most %d; they are free again when it has ended", sess.peer.PID, n, maxNames)}
	}
	if owned {
		old.close()
	}
	if sess.peer.PID != 0 {
		s.owners[sess.key] = sess.peer
	}
	return nil
}

// names is how many the process owns; one that the kernel cannot name owns none.
// Call it with s.mu held.
func (s *Server) names(pid int) int {
	n := 0
	for _, p := range s.owners {
		if pid != 0 && p.PID == pid {
			n++
		}
	}
	return n
}

// taken refuses a name that a living process has.
func taken(key Key, pid int) *LineError {
	return &LineError{What: "session", Where: "job",
		Rule: fmt.Sprintf("trainer %s is process %d, which is alive; want another job name or rank", key, pid)}
}

// forget drops the owners that have ended. One with a session is left to it:
// its session still waits for the pidfd. Call it with s.mu held.
func (s *Server) forget() {
	for key, p := range s.owners {
		if s.sessions[key] == nil && p.ended() {
			p.close()
			delete(s.owners, key)
		}
	}
}

// ended says whether the process is gone. Without a pidfd its number is asked
// for, which may be another process by then: that errs towards refusing.
func (p peer) ended() bool {
	if p.pidfd != nil {
		return dead(p.pidfd)
	}
	return errors.Is(unix.Kill(p.PID, 0), unix.ESRCH)
}

func (p peer) close() {
	if p.pidfd != nil {
		_ = p.pidfd.Close()
	}
}
