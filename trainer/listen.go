package trainer

import (
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Server holds the listeners and the live sessions.
type Server struct {
	cfg       Config
	handler   Handler
	listeners []net.Listener
	socket    os.FileInfo // of our own socket file
	wg        sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	conns    map[net.Conn]bool // not yet sessions
	sessions map[Key]*Session
}

// Listen opens the Unix socket, and TCP with TLS where the config asks for it,
// and serves until Close.
func Listen(cfg Config, h Handler) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg.withDefaults(), handler: h,
		conns: map[net.Conn]bool{}, sessions: map[Key]*Session{},
	}
	if err := s.open(); err != nil {
		for _, l := range s.listeners {
			_ = l.Close()
		}
		return nil, err
	}
	for _, l := range s.listeners {
		s.wg.Go(func() { s.accept(l) }) // ends when Close closes l
	}
	return s, nil
}

func (s *Server) open() error {
	path := s.cfg.Path
	fail := func(err error) error { return &Error{Op: "listen " + path, Err: err} }
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fail(err)
	}
	if err := removeStale(path); err != nil {
		return fail(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return fail(err)
	}
	l.SetUnlinkOnClose(false) // Close removes the file only if it is still ours
	s.listeners = append(s.listeners, l)
	// A process that connects before the mode is set is still refused by its uid.
	if err := os.Chmod(path, s.cfg.Mode); err != nil {
		return fail(err)
	}
	if s.socket, err = os.Lstat(path); err != nil {
		return fail(err)
	}
	if s.cfg.TCPAddr == "" {
		return nil
	}
	t, err := tls.Listen("tcp", s.cfg.TCPAddr, s.cfg.TLS)
	if err != nil {
		return &Error{Op: "listen " + s.cfg.TCPAddr, Err: err}
	}
	s.listeners = append(s.listeners, t)
	return nil
}

// removeStale removes a socket file that a dead sidecar left. Anything that
// answers, and anything that is no socket, stays.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return errors.New("a file that is no socket is there, want nothing or a stale socket; it is left alone")
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close()
		return errors.New("another process answers there, want one sidecar a socket; it is left alone")
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("a socket is there and it is not clear whether anybody answers: %w", err)
	}
	return os.Remove(path)
}

// Addr is where trainers reach it: the Unix socket's path.
func (s *Server) Addr() string { return s.cfg.Path }

// TCPAddr is the TCP address it listens on, "" when it does not.
func (s *Server) TCPAddr() string {
	if len(s.listeners) < 2 {
		return ""
	}
	return s.listeners[1].Addr().String()
}

// Close says bye to every trainer, ends all sessions and waits for them. A
// trainer keeps its last grant for the lease. Harmless when repeated.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.wg.Wait()
		return nil
	}
	s.closed = true
	for c := range s.conns {
		_ = c.Close()
	}
	live := make([]*Session, 0, len(s.sessions))
	for _, sess := range s.sessions {
		live = append(live, sess)
	}
	s.mu.Unlock()
	var errs []error
	for _, l := range s.listeners {
		errs = append(errs, l.Close())
	}
	for _, sess := range live {
		_ = sess.Send(Bye{Reason: "the sidecar closes"})
		sess.Close()
	}
	s.wg.Wait()
	if now, err := os.Lstat(s.cfg.Path); err == nil && s.socket != nil && os.SameFile(now, s.socket) {
		errs = append(errs, os.Remove(s.cfg.Path))
	}
	return errors.Join(errs...)
}

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
		if sess.peer.pidfd != nil {
			_ = sess.peer.pidfd.Close()
		}
		s.cfg.Fault(nil, e)
		return nil
	}
	if e := s.check(sess); e != nil {
		return refuse(e)
	}
	_ = conn.SetReadDeadline(time.Now().Add(s.cfg.HelloTimeout))
	for {
		line, err := sess.in.next()
		if err != nil {
			return refuse(&LineError{What: "hello", Where: "line", Rule: fmt.Sprintf("none came: %v", err)})
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
		return &LineError{What: m.Type(), Where: "type", Rule: "hello comes first"}
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
// is gone before this one says hello.
func (s *Server) claim(sess *Session) *LineError {
	for {
		s.mu.Lock()
		old := s.sessions[sess.key]
		if s.closed {
			s.mu.Unlock()
			return &LineError{What: "session", Where: "job", Rule: "the sidecar closes"}
		}
		if old == nil {
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
		if a, b := old.peer.PID, sess.peer.PID; a != 0 && b != 0 && a != b && !dead(old.peer.pidfd) {
			return &LineError{What: "session", Where: "job",
				Rule: fmt.Sprintf("trainer %s is process %d, which is alive; want another job name or rank", sess.key, a)}
		}
		old.end(GoneSuperseded)
		<-old.done
	}
}
