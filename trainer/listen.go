package trainer

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
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
	owners   map[Key]peer // processes that have a name; each pidfd is open
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
		owners: map[Key]peer{},
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
	if err := s.openFolder(filepath.Dir(path)); err != nil {
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

// openFolder lets other users pass through the socket's folder where the socket
// is for them as well; they can still not list it.
func (s *Server) openFolder(dir string) error {
	const pass = 0o011
	if s.cfg.Mode.Perm()&0o006 == 0 {
		return nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if perm := info.Mode().Perm(); perm&pass != pass {
		return os.Chmod(dir, info.Mode()&^fs.ModePerm&^fs.ModeType|perm|pass)
	}
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
	s.mu.Lock()
	for key, p := range s.owners {
		p.close()
		delete(s.owners, key)
	}
	s.mu.Unlock()
	if now, err := os.Lstat(s.cfg.Path); err == nil && s.socket != nil && os.SameFile(now, s.socket) {
		errs = append(errs, os.Remove(s.cfg.Path))
	}
	return errors.Join(errs...)
}
