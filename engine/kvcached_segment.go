package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lull-project/lull/size"
)

// kvcached's segment is three int64 in host byte order: the limit, which
// controllers write, then the bytes in use and the bytes mapped ahead, which the
// engine writes. There is no header and no version; kvcached's MemInfoStruct is
// the source.
const (
	segmentSize = 24
	// segmentMost is far above any device: a larger number is damage.
	segmentMost = int64(1) << 50
	// Tries to take the segment's lock are this far apart at first and at most. The
	// engine holds it for microseconds.
	lockWait, lockWaitMost = 50 * time.Microsecond, 2 * time.Millisecond
)

// segmentInfo is the segment at one moment.
type segmentInfo struct {
	// inode tells a new file of the same path.
	inode              uint64
	limit, used, ahead int64
	uid                uint32
	device             uint64
}

// held is what is physically mapped.
func (i segmentInfo) held() size.Bytes { return size.Bytes(i.used + i.ahead) }

// decodeSegment reads the 24 bytes. Zero in the first field is a file that the
// engine has made and not yet filled: ErrNotReady.
func decodeSegment(raw []byte) (segmentInfo, error) {
	if len(raw) == 0 {
		return segmentInfo{}, fmt.Errorf("%w: an empty file; the engine is making it", ErrNotReady)
	}
	if len(raw) != segmentSize {
		return segmentInfo{}, fmt.Errorf("got %d bytes, want the %d of kvcached's segment", len(raw), segmentSize)
	}
	word := func(i int) int64 { return int64(binary.NativeEndian.Uint64(raw[8*i:])) }
	s := segmentInfo{limit: word(0), used: word(1), ahead: word(2)}
	if s == (segmentInfo{}) {
		return segmentInfo{}, fmt.Errorf("%w: all zero; the engine is making it", ErrNotReady)
	}
	for _, w := range []int64{s.limit - 1, s.used, s.ahead} {
		if w < 0 || w > segmentMost {
			return segmentInfo{}, fmt.Errorf("got limit %d, used %d, ahead %d, want kvcached's own numbers: a limit above 0 and no negative bytes", s.limit, s.used, s.ahead)
		}
	}
	return s, nil
}

// withSegment opens the segment by its path, takes kvcached's lock (flock, how is
// LOCK_SH or LOCK_EX), reads it and calls do before it gives the lock back. It
// never keeps the file: the engine makes a new one at each start.
func withSegment(ctx context.Context, path string, how int, do func(*os.File, segmentInfo) error) error {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if how == unix.LOCK_SH && errors.Is(err, fs.ErrPermission) {
		f, err = os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0) // enough to look
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("no segment %s: %w", path, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("segment %s: %w; run Lull as the engine's user", path, err)
	case err != nil:
		return fmt.Errorf("segment %s: %w", path, err)
	}
	defer f.Close() // gives the lock back as well
	if err := lockSegment(ctx, f, how); err != nil {
		return fmt.Errorf("segment %s: %w", path, err)
	}
	info, err := readSegment(f, path)
	if err != nil {
		return fmt.Errorf("segment %s: %w", path, err)
	}
	return do(f, info)
}

// lockSegment waits for the lock without blocking a thread: an engine that was
// stopped while it held it must not hang the sidecar.
func lockSegment(ctx context.Context, f *os.File, how int) error {
	began := time.Now()
	for wait := lockWait; ; wait = min(2*wait, lockWaitMost) {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock: %w", err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("somebody has held its lock for %v: %w", time.Since(began).Round(time.Millisecond), ctx.Err())
		case <-timer.C:
		}
	}
}

// readSegment reads a locked segment and sees that its path still leads to it.
func readSegment(f *os.File, path string) (segmentInfo, error) {
	var own, now unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &own); err != nil {
		return segmentInfo{}, err
	}
	if own.Mode&unix.S_IFMT != unix.S_IFREG {
		return segmentInfo{}, fmt.Errorf("got no regular file, want kvcached's segment")
	}
	if err := unix.Stat(path, &now); err != nil || now.Ino != own.Ino || now.Dev != own.Dev {
		return segmentInfo{}, fmt.Errorf("%w: replaced while it was read; the engine is starting", ErrNotReady)
	}
	raw := make([]byte, segmentSize+1)
	n, err := f.ReadAt(raw, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return segmentInfo{}, err
	}
	s, err := decodeSegment(raw[:n])
	s.inode, s.device, s.uid = own.Ino, own.Dev, own.Uid
	return s, err
}

// writeLimit writes bytes 0 to 7 of a segment that is locked exclusively, and
// nothing else: the rest is the engine's.
func writeLimit(f *os.File, limit size.Bytes) error {
	var raw [8]byte
	binary.NativeEndian.PutUint64(raw[:], uint64(limit))
	_, err := f.WriteAt(raw[:], 0)
	return err
}
