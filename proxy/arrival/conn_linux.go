//go:build linux && (amd64 || arm64)

package arrival

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// What a socket is asked for (linux/net_tstamp.h): a stamp of each packet that comes,
// taken by software, and told as such.
const (
	stampReceived = 1 << 3
	tellSoftware  = 1 << 4
)

// Stamped is c, and keeps stamps where c is a TCP connection whose kernel has them.
func Stamped(c net.Conn) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw := ask(tcp)
	if raw == nil {
		return c
	}
	s := &conn{TCPConn: tcp, raw: raw, clock: newClock(time.Now())}
	s.msg.Iov, s.msg.Iovlen = &s.into, 1
	s.take = s.receive
	return s
}

// ask makes a socket keep stamps; nil says that it cannot.
func ask(socket any) syscall.RawConn {
	has, ok := socket.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := has.SyscallConn()
	if err != nil {
		return nil
	}
	cerr := raw.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_TIMESTAMPING, stampReceived|tellSoftware)
	})
	if cerr != nil || err != nil {
		return nil
	}
	return raw
}

// conn is a TCP connection that reads by recvmsg.
type conn struct {
	*net.TCPConn
	raw   syscall.RawConn
	clock *Clock

	mu   sync.Mutex // held during a read, as the runtime's own lock is
	take func(fd uintptr) bool
	msg  syscall.Msghdr
	into syscall.Iovec
	told control
	got  int
	err  error
}

// control is the one message that comes beside the bytes: stamps by software, of an
// older kind, by hardware (scm_timestamping of linux/errqueue.h).
type control struct {
	syscall.Cmsghdr
	stamps [3]syscall.Timespec
}

// Arrivals is when bytes came.
func (c *conn) Arrivals() *Clock { return c.clock }

// Read reads as a TCPConn does, but see Clock.Served. A read of one byte notes nothing:
// what comes into net/http's look belongs to no request yet.
func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return c.TCPConn.Read(p)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.into.Base = &p[0]
	c.into.SetLen(len(p))
	err := c.raw.Read(c.take)
	c.into.Base = nil
	switch {
	case err != nil:
		c.got, err = 0, c.failed(err)
	case c.err != nil:
		c.got, err = 0, c.failed(os.NewSyscallError("read", c.err))
	case c.got == 0:
		err = io.EOF
	}
	if len(p) > 1 {
		now := time.Now()
		c.clock.read(now.Sub(c.clock.born), now.UnixNano(), c.stamp())
	}
	return c.got, err
}

// receive reads once; false lets the runtime wait until there is something to read.
func (c *conn) receive(fd uintptr) bool {
	for {
		c.msg.Control, c.told.Len = (*byte)(unsafe.Pointer(&c.told)), 0
		c.msg.SetControllen(int(unsafe.Sizeof(c.told)))
		looks, flags := c.into.Len == 1 && c.clock.looks.Load(), 0
		if looks {
			flags = syscall.MSG_PEEK
		}
		n, _, errno := syscall.Syscall(syscall.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&c.msg)), uintptr(flags))
		switch errno {
		case 0:
			if looks && n > 0 {
				c.got, c.err = 0, nil
				return ended(fd)
			}
			c.got, c.err = int(n), nil
			observed(fd)
			return true
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			c.got, c.err = 0, errno
			return true
		}
	}
}

// ended says that the other end of a connection has closed or reset it, though there
// may be bytes to read. The runtime waits for that as for bytes.
func ended(fd uintptr) bool {
	const established = 1 // linux/tcp_states.h; the state is the first byte of tcp_info
	state, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO)
	return err == nil && state&0xff != established
}

// stamp is the last read's, in ns since 1970; 0 for none.
func (c *conn) stamp() int64 {
	if c.got == 0 || c.told.Level != syscall.SOL_SOCKET || c.told.Type != syscall.SCM_TIMESTAMPING || c.told.Len < uint64(unsafe.Sizeof(c.told)) {
		return 0
	}
	return c.told.stamps[0].Nano()
}

// failed is an error as a TCPConn's Read has it.
func (c *conn) failed(err error) error {
	var op *net.OpError
	if errors.As(err, &op) { // "raw-read"
		err = op.Err
	}
	return &net.OpError{Op: "read", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
