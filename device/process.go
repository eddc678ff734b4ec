package device

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"github.com/lull-project/lull/size"
)

// ErrGone is returned by Read and ReadTree when the process has ended: it holds
// no memory any more.
var ErrGone = errors.New("process is gone")

// Process reads one process's bytes again and again through one open file: the
// file stays bound to the process, so a reused pid is never mistaken for it.
type Process struct {
	pid  int
	file *os.File
	buf  [4096]byte
}

// Open opens the books of a process. The error wraps ErrGone when there is no
// such process.
func Open(pid int) (*Process, error) {
	f, err := os.Open(statusPath(pid))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("device: open pid %d: %w", pid, ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("device: open pid %d: %w", pid, err)
	}
	return &Process{pid: pid, file: f}, nil
}

// PID is the process that is read.
func (p *Process) PID() int { return p.pid }

// Read returns RssAnon + RssShmem. It takes about 20 µs. The error wraps ErrGone
// when the process has ended; a zombie has ended.
func (p *Process) Read() (size.Bytes, error) {
	n, err := p.file.ReadAt(p.buf[:], 0)
	if errors.Is(err, syscall.ESRCH) {
		return 0, fmt.Errorf("device: read pid %d: %w", p.pid, ErrGone)
	}
	if n == 0 {
		return 0, fmt.Errorf("device: read pid %d: %w", p.pid, err)
	}
	return parseStatus(p.pid, p.buf[:n])
}

// Close releases the file.
func (p *Process) Close() error { return p.file.Close() }

func statusPath(pid int) string { return "/proc/" + strconv.Itoa(pid) + "/status" }

// parseStatus adds RssAnon and RssShmem. A process without them has no address
// space left: a zombie, or a kernel thread.
func parseStatus(pid int, status []byte) (size.Bytes, error) {
	anon, ok := statusKiB(status, "\nRssAnon:")
	if !ok {
		return 0, fmt.Errorf("device: read pid %d: no RssAnon in its status: %w", pid, ErrGone)
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
