package device

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gofrs/flock"
)

// Lock makes one sidecar the only writer of a device and counts its starts in
// the same file. The kernel drops it when the process ends, however it ends.
type Lock struct {
	lock    *flock.Flock
	Session uint32
}

// Acquire takes the lock of a device in dir and raises the session counter. The
// error names the file when another sidecar holds it, or when what it holds is
// not a counter.
func Acquire(dir, device string) (*Lock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("device: lock %s: %w", device, err)
	}
	path := filepath.Join(dir, device+".lock")
	l := flock.New(path, flock.SetPermissions(0o600))
	got, err := l.TryLock()
	if err != nil {
		return nil, fmt.Errorf("device: lock %s: %w", path, err)
	}
	if !got {
		return nil, fmt.Errorf("device: lock %s: another sidecar holds it; one sidecar writes a device", path)
	}
	session, err := nextSession(path)
	if err != nil {
		_ = l.Unlock()
		return nil, err
	}
	return &Lock{lock: l, Session: session}, nil
}

// Release gives the lock back; the counter stays in the file.
func (l *Lock) Release() error { return l.lock.Unlock() }

// nextSession reads the counter, adds one and writes it back in place: the lock
// is on this very file, so it must not be replaced.
func nextSession(path string) (uint32, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("device: session in %s: %w", path, err)
	}
	var last uint64
	if word := strings.TrimSpace(string(text)); word != "" {
		if last, err = strconv.ParseUint(word, 10, 20); err != nil {
			return 0, fmt.Errorf("device: session in %s: got %q, want a count below 1048576; remove the file once no engine or trainer of that device runs", path, word)
		}
	}
	next := last + 1
	if err := os.WriteFile(path, []byte(strconv.FormatUint(next, 10)+"\n"), 0o600); err != nil {
		return 0, fmt.Errorf("device: session in %s: %w", path, err)
	}
	return uint32(next), nil
}
