package device

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lull-project/lull/size"
)

// ErrGone is returned by Read and ReadTree when the process has ended: it holds
// no memory any more.
var ErrGone = errors.New("process is gone")

// errEnding is a process on its way out: its first thread has let go of the
// address space, and the pages may still be there.
var errEnding = errors.New("it is ending and does not show its bytes any more")

// Process reads one process's bytes again and again through one open file: the
// file stays bound to the process, so a reused pid is never mistaken for it.
type Process struct {
	pid   int
	pidfd int // -1 where the kernel has none
	file  *os.File
	last  size.Bytes // the last figure that it showed, -1 before the first
	buf   [4096]byte
}

// Open opens the books of a process. The error wraps ErrGone when there is no
// such process.
func Open(pid int) (*Process, error) {
	pidfd, err := unix.PidfdOpen(pid, 0) // before the file: a pid that changes hands in between is found out
	if errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("device: open pid %d: %w", pid, ErrGone)
	}
	if err != nil {
		pidfd = -1
	}
	p := &Process{pid: pid, pidfd: pidfd, last: -1}
	p.file, err = os.Open(statusPath(pid))
	switch {
	case err == nil && !p.ended():
		return p, nil
	case err == nil || errors.Is(err, os.ErrNotExist):
		err = ErrGone
	}
	_ = p.Close()
	return nil, fmt.Errorf("device: open pid %d: %w", pid, err)
}

// PID is the process that is read.
func (p *Process) PID() int { return p.pid }

// Read returns RssAnon + RssShmem. It takes about 20 µs. The error wraps ErrGone
// when the process has ended, all its threads with it; a zombie has ended. One
// that is only on its way out (the kernel hides its bytes before it frees them,
// and its first thread may end before the others) still holds what it last showed.
func (p *Process) Read() (size.Bytes, error) {
	n, err := p.file.ReadAt(p.buf[:], 0)
	if errors.Is(err, syscall.ESRCH) {
		return 0, fmt.Errorf("device: read pid %d: %w", p.pid, ErrGone)
	}
	if n == 0 {
		return 0, fmt.Errorf("device: read pid %d: %w", p.pid, err)
	}
	b, err := parseStatus(p.pid, p.buf[:n])
	if err == nil {
		p.last = b
		return b, nil
	}
	switch {
	case p.ended() || p.pidfd < 0 && zombie(p.buf[:n]):
		return 0, fmt.Errorf("device: read pid %d: %w", p.pid, ErrGone)
	case p.last >= 0:
		return p.last, nil
	}
	return 0, err
}

// ended says that the process is gone with all its threads, and so with its
// address space: a pidfd is readable from then on (pidfd_open(2)).
func (p *Process) ended() bool {
	if p.pidfd < 0 {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
	n, _ := unix.Poll(fds, 0)
	return n > 0
}

// zombie is all that an older kernel can say.
func zombie(status []byte) bool { return bytes.Contains(status, []byte("\nState:\tZ")) }

// Close releases what Open opened.
func (p *Process) Close() error {
	var err error
	if p.pidfd >= 0 {
		err = unix.Close(p.pidfd)
		p.pidfd = -1
	}
	if p.file != nil {
		err = errors.Join(err, p.file.Close())
	}
	return err
}

func statusPath(pid int) string { return "/proc/" + strconv.Itoa(pid) + "/status" }

// parseStatus adds RssAnon and RssShmem. The first thread of a process without
// them has let go of the address space: it ends, or is a zombie or a kernel thread.
func parseStatus(pid int, status []byte) (size.Bytes, error) {
	anon, ok := statusKiB(status, "\nRssAnon:")
	if !ok {
		return 0, fmt.Errorf("device: read pid %d: no RssAnon in its status: %w", pid, errEnding)
	}
	shmem, _ := statusKiB(status, "\nRssShmem:")
	return (anon + shmem) * size.KiB, nil
}

func statusKiB(status []byte, key string) (size.Bytes, bool) {
	i := bytes.Index(status, []byte(key))
	if i < 0 {
		return 0, false
	}
	var v size.Bytes
	digits := 0
	for _, c := range status[i+len(key):] {
		if c >= '0' && c <= '9' {
			v = v*10 + size.Bytes(c-'0')
			digits++
		} else if digits > 0 {
			break
		}
	}
	return v, digits > 0
}
