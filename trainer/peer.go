package trainer

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// soPeerPIDFD is SO_PEERPIDFD of Linux 6.5: a pidfd of the very process that
// connected, whatever its number is used for by then.
const soPeerPIDFD = 77

// peer is who connected. PID is 0 when the kernel cannot say it here: another
// PID namespace, or TCP.
type peer struct {
	UID uint32
	PID int
	// pidfd becomes readable when the process has ended; nil when there is none.
	pidfd *os.File
}

// readPeer asks the kernel who is at the other end of the Unix socket fd.
func readPeer(fd uintptr) (peer, error) {
	cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return peer{}, fmt.Errorf("read the peer's credentials: %w", err)
	}
	p := peer{UID: cred.Uid, PID: int(cred.Pid)}
	if p.PID > 0 {
		p.pidfd = openPIDFD(int(fd), p.PID)
	}
	return p, nil
}

// openPIDFD returns nil where the kernel has no pidfds (before 5.3) or the
// process is gone already: end of file and heartbeats remain.
func openPIDFD(sock, pid int) *os.File {
	fd, err := unix.GetsockoptInt(sock, unix.SOL_SOCKET, soPeerPIDFD)
	if err != nil {
		fd, err = unix.PidfdOpen(pid, 0)
	}
	if err != nil {
		return nil
	}
	// Non-blocking, so that the runtime's poller waits for it and no thread does.
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil
	}
	return os.NewFile(uintptr(fd), "pidfd")
}

// waitDead returns nil when the process has ended and an error when f's read
// deadline came first or f cannot be waited for.
func waitDead(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var fault error
	err = raw.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		if err != nil && !errors.Is(err, unix.EINTR) {
			fault = err
			return true
		}
		return n > 0
	})
	if err != nil {
		return err
	}
	return fault
}

// dead says whether the process behind f has ended; false when f is nil.
func dead(f *os.File) bool {
	if f == nil {
		return false
	}
	gone := true // a closed f belonged to a server that has ended
	raw, err := f.SyscallConn()
	if err != nil {
		return gone
	}
	_ = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, _ := unix.Poll(fds, 0)
		gone = n > 0
	})
	return gone
}
