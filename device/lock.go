package device

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gofrs/flock"
)

// maxSession is the largest session: an epoch's upper part has room for it.
const maxSession = 1<<20 - 1

// Lock makes one sidecar the only writer of a device and counts its starts in
// the same file. The kernel drops it when the process ends, however it ends. It
// is for one goroutine.
type Lock struct {
	lock    *flock.Flock
	path    string
	Session uint32

	// Unreadable is what the file held instead of a counter, "" where it held one.
	// The count then begins anew: the sidecar goes above what trainers and engines
	// say they have seen, as it does after a file that is gone.
	Unreadable string
}

// Acquire takes the lock of a device in dir and raises the session counter. The
// error names the file when another sidecar holds it, or when the counter in it
// is at its end.
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
	session, unreadable, err := nextSession(path)
	if err != nil {
		_ = l.Unlock()
		return nil, err
	}
	return &Lock{lock: l, path: path, Session: session, Unreadable: unreadable}, nil
}

// RaiseTo makes session the counter where it is higher, so that a sidecar of
// several devices has one session for all of them, and its next start a higher
// one whichever devices it has then. A lower session changes nothing.
func (l *Lock) RaiseTo(session uint32) error {
	if session <= l.Session {
		return nil
	}
	if err := writeSession(l.path, uint64(session)); err != nil {
		return err
	}
	l.Session = session
	return nil
}

// Release gives the lock back; the counter stays in the file.
func (l *Lock) Release() error { return l.lock.Unlock() }

// nextSession reads the counter, adds one and writes it back. What is no counter
// counts as none and is returned, cut to what a log line bears.
func nextSession(path string) (next uint32, unreadable string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, "", fmt.Errorf("device: session in %s: %w", path, err)
	}
	var last uint64
	if word := strings.TrimSpace(string(text)); word != "" {
		if last, err = strconv.ParseUint(word, 10, 20); err != nil {
			last, unreadable = 0, word[:min(len(word), 40)]
		}
	}
	if err := writeSession(path, last+1); err != nil {
		return 0, "", err
	}
	return uint32(last + 1), unreadable, nil
}

// writeSession writes the counter in place: the lock is on this very file, so it
// must not be replaced. The width is fixed and nothing is cut off before the
// number is there, so that whatever ends the process leaves the old count or the
// new one, never none.
func writeSession(path string, session uint64) error {
	fail := func(err error) error { return fmt.Errorf("device: session in %s: %w", path, err) }
	if session > maxSession {
		return fail(fmt.Errorf("got %d, want at most %d; remove the file once no engine or trainer of that device runs", session, maxSession))
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fail(err)
	}
	line := fmt.Appendf(nil, "%010d\n", session)
	_, err = f.WriteAt(line, 0)
	if err == nil {
		err = f.Truncate(int64(len(line))) // of a longer file, only white space is left
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fail(err)
	}
	return nil
}
