package trainer

import (
	"crypto/tls"
	"fmt"
	"os"
	"time"
)

// MissedHeartbeats is how many heartbeats in a row a peer may miss before the
// other side takes it for dead.
const MissedHeartbeats = 3

// Config is what Listen needs. Zero values of the other fields than Path mean
// DefaultConfig's.
type Config struct {
	// Path is the Unix socket. Its directory is made with mode 0700 if it is not
	// there. Default /run/lull/lull.sock.
	Path string
	// Mode is the socket's file mode, default 0600. Wider is needed only when
	// AllowedUIDs names others than root and this process's own user.
	Mode os.FileMode
	// AllowedUIDs are the users whose processes may connect; nil means this
	// process's user and root.
	AllowedUIDs []uint32
	// Session is the sidecar's start, said in welcome; from the device's lock file.
	Session uint32
	// Heartbeat is the time between pings, default 1s. Shorter notices a stopped
	// trainer sooner (after three of them) and wakes every trainer more often.
	Heartbeat time.Duration
	// Lease is how long a trainer keeps its last grant without a sidecar, default
	// 10s. Shorter makes a sidecar's restart cost training speed, longer leaves
	// memory lent while nobody watches.
	Lease time.Duration
	// HelloTimeout is how long a connection may stay without hello, default 5s.
	HelloTimeout time.Duration
	// TCPAddr, when set, also listens there, with TLS and Token, both required.
	TCPAddr string
	// TLS is the server's certificate for TCPAddr.
	TLS *tls.Config
	// Token is what hello must carry on a TCP connection; at least 16 bytes.
	Token string
	// Fault, when set, is told of lines that were no valid messages, of error
	// lines that trainers sent and of refused connections (session nil), for
	// metrics and logs. It is called from several goroutines and must not block.
	Fault func(s *Session, err error)

	// peer replaces the reading of the peer's credentials in tests.
	peer func(fd uintptr) (peer, error)
	// now replaces the clock that floods are counted by, likewise.
	now func() time.Time
}

// DefaultConfig is what serves one machine.
func DefaultConfig() Config {
	return Config{
		Path: "/run/lull/lull.sock", Mode: 0o600,
		Heartbeat: time.Second, Lease: 10 * time.Second, HelloTimeout: 5 * time.Second,
	}
}

// withDefaults fills what was left at zero.
func (c Config) withDefaults() Config {
	d := DefaultConfig()
	if c.Path == "" {
		c.Path = d.Path
	}
	if c.Mode == 0 {
		c.Mode = d.Mode
	}
	if c.AllowedUIDs == nil {
		c.AllowedUIDs = []uint32{0, uint32(os.Getuid())}
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = d.Heartbeat
	}
	if c.Lease == 0 {
		c.Lease = d.Lease
	}
	if c.HelloTimeout == 0 {
		c.HelloTimeout = d.HelloTimeout
	}
	if c.Fault == nil {
		c.Fault = func(*Session, error) {}
	}
	if c.peer == nil {
		c.peer = readPeer
	}
	if c.now == nil {
		c.now = time.Now
	}
	return c
}

// Validate says which key breaks which rule.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case c.Heartbeat < time.Millisecond:
		return fmt.Errorf("trainer.heartbeat: got %v, want at least 1ms", c.Heartbeat)
	case c.Lease < MissedHeartbeats*c.Heartbeat:
		return fmt.Errorf("trainer.lease: got %v, want at least %d heartbeats, %v",
			c.Lease, MissedHeartbeats, MissedHeartbeats*c.Heartbeat)
	case c.HelloTimeout < 0:
		return fmt.Errorf("trainer.hello_timeout: got %v, want more than 0", c.HelloTimeout)
	case c.TCPAddr != "" && c.TLS == nil:
		return fmt.Errorf("trainer.tls: got none, want a certificate, since trainer.tcp is %s", c.TCPAddr)
	case c.TCPAddr != "" && len(c.Token) < 16:
		return fmt.Errorf("trainer.token: got %d bytes, want at least 16, since trainer.tcp is %s",
			len(c.Token), c.TCPAddr)
	}
	return nil
}
