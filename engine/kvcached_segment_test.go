package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lull-project/lull/size"
)

// rawSegment is the 24 bytes of three words.
func rawSegment(words ...int64) []byte {
	raw := make([]byte, 0, segmentSize)
	for _, w := range words {
		raw = binary.NativeEndian.AppendUint64(raw, uint64(w))
	}
	return raw
}

func TestSegmentSaysWhatIsWrongWithIt(t *testing.T) {
	for name, c := range map[string]struct {
		raw      []byte
		want     string
		notReady bool
	}{
		"empty":        {nil, "not ready: an empty file; the engine is making it", true},
		"zero":         {rawSegment(0, 0, 0), "not ready: all zero; the engine is making it", true},
		"short":        {rawSegment(1, 2), "got 16 bytes, want the 24 of kvcached's segment", false},
		"long":         {rawSegment(1, 2, 3, 4), "got 25 bytes, want the 24 of kvcached's segment", false},
		"no limit":     {rawSegment(0, 5, 0), "got limit 0, used 5, ahead 0, want kvcached's own numbers", false},
		"negative":     {rawSegment(9, -1, 0), "got limit 9, used -1, ahead 0, want", false},
		"out of range": {rawSegment(9, 0, math.MaxInt64), "got limit 9, used 0, ahead 9223372036854775807, want", false},
		"most limit":   {rawSegment(math.MinInt64, 0, 0), "got limit -9223372036854775808", false},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "kvcached_x")
			if err := os.WriteFile(path, c.raw, 0o600); err != nil {
				t.Fatal(err)
			}
			err := withSegment(t.Context(), path, unix.LOCK_SH, func(*os.File, segmentInfo) error { t.Error("called"); return nil })
			wantError(t, err, "segment "+path+": ", c.want)
			if errors.Is(err, ErrNotReady) != c.notReady {
				t.Errorf("got %v, want ErrNotReady %v", err, c.notReady)
			}
		})
	}
}

func TestSegmentThatIsNoFileOfItsOwnIsRefused(t *testing.T) {
	dir := t.TempDir()
	real, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	if err := os.WriteFile(real, rawSegment(9, 0, 0), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	do := func(*os.File, segmentInfo) error { t.Error("called"); return nil }
	wantError(t, withSegment(t.Context(), link, unix.LOCK_EX, do), "segment "+link+": ", "too many levels of symbolic links")
	wantError(t, withSegment(t.Context(), dir, unix.LOCK_EX, do), "segment "+dir+": ", "is a directory")
	err := withSegment(t.Context(), filepath.Join(dir, "none"), unix.LOCK_SH, do)
	wantError(t, err, "no segment "+dir+"/none: ", "no such file")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want it to wrap ErrNotExist", err)
	}
}

func TestSegmentLockedByAStoppedEngineDoesNotHang(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kvcached_x")
	if err := os.WriteFile(path, rawSegment(9, 0, 0), 0o600); err != nil {
		t.Fatal(err)
	}
	holder, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	if err := unix.Flock(int(holder.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err = withSegment(ctx, path, unix.LOCK_SH, func(*os.File, segmentInfo) error { t.Error("called"); return nil })
	wantError(t, err, "segment "+path+": somebody has held its lock for ", "deadline exceeded")
	if err := holder.Close(); err != nil { // the kernel gives a dead engine's lock back
		t.Fatal(err)
	}
	if err := withSegment(t.Context(), path, unix.LOCK_EX, func(*os.File, segmentInfo) error { return nil }); err != nil {
		t.Errorf("after the holder's end: %v", err)
	}
}

func TestNoteFollowsTheSegment(t *testing.T) {
	const g = int64(size.GiB)
	ours := limitNote{Inode: 7, Initial: 10 * size.GiB, Largest: 10 * size.GiB, Before: 10 * size.GiB, Asked: 4 * size.GiB, Written: 4 * size.GiB, Epoch: 9}
	for name, c := range map[string]struct {
		note  limitNote
		inode uint64
		limit int64
		want  limitNote
	}{
		"first look":                            {limitNote{}, 7, 10 * g, limitNote{Inode: 7, Initial: 10 * size.GiB, Largest: 10 * size.GiB, Before: 10 * size.GiB}},
		"our order stands":                      {ours, 7, 4 * g, ours},
		"crash before the limit was written":    {ours, 7, 10 * g, limitNote{Inode: 7, Initial: 10 * size.GiB, Largest: 10 * size.GiB, Before: 10 * size.GiB}},
		"a new file":                            {ours, 8, 6 * g, limitNote{Inode: 8, Initial: 6 * size.GiB, Largest: 6 * size.GiB, Before: 6 * size.GiB}},
		"kvctl or a smaller engine in the file": {ours, 7, 6 * g, limitNote{Inode: 7, Initial: 6 * size.GiB, Largest: 10 * size.GiB, Before: 6 * size.GiB}},
		"a larger engine in the file":           {ours, 7, 20 * g, limitNote{Inode: 7, Initial: 10 * size.GiB, Largest: 20 * size.GiB, Before: 20 * size.GiB}},
	} {
		if got := c.note.follow(segmentInfo{inode: c.inode, limit: c.limit}); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

func TestLimitIsClampedBetweenOnePageAndOneByteBelowTheBeginning(t *testing.T) {
	n := limitNote{Initial: size.GiB}
	for _, c := range []struct{ ask, page, want size.Bytes }{
		{0, 128 * size.MiB, 128 * size.MiB},
		{size.MiB, 128 * size.MiB, 128 * size.MiB},
		{512 * size.MiB, 128 * size.MiB, 512 * size.MiB},
		{size.GiB, 128 * size.MiB, size.GiB - 1},
		{80 * size.GiB, 128 * size.MiB, size.GiB - 1},
		{0, 2 * size.GiB, size.GiB - 1},
	} {
		if got := n.clamp(c.ask, c.page); got != c.want {
			t.Errorf("clamp(%v, %v): got %d, want %d", c.ask, c.page, got, c.want)
		}
	}
	if got := (limitNote{Initial: 1}).clamp(0, size.MiB); got != 1 {
		t.Errorf("a pool of one byte: got %d, want 1: the engine ignores 0", got)
	}
}

func TestPageIDIsLearnedFromWhatIsMapped(t *testing.T) {
	var p pageIDs
	if p.size() != pageIDUnknown {
		t.Errorf("before anything: got %v, want %v", p.size(), pageIDUnknown)
	}
	for _, c := range []struct {
		used, ahead int64
		want        size.Bytes
	}{{0, 5 * 144, 720}, {0, 0, 720}, {2 * 144, 5 * 144, 144}, {7 * 144, 0, 144}} {
		p.see(segmentInfo{used: c.used, ahead: c.ahead})
		if p.size() != c.want {
			t.Errorf("used %d, ahead %d: got %d, want %d", c.used, c.ahead, p.size(), c.want)
		}
	}
}

func TestNoteOfSomebodyElseOrDamagedSaysNothing(t *testing.T) {
	segment := filepath.Join(t.TempDir(), "kvcached_x")
	good := limitNote{Inode: 1, Initial: 9, Largest: 9, Before: 9, Asked: 5, Written: 5, Epoch: 3}
	if err := writeNote(segment, good); err != nil {
		t.Fatal(err)
	}
	if got := readNote(segment); got != good {
		t.Errorf("got %+v, want %+v", got, good)
	}
	if err := os.Chmod(notePath(segment), 0o666); err != nil {
		t.Fatal(err)
	}
	if got := readNote(segment); got != (limitNote{}) {
		t.Errorf("writable for all: got %+v, want nothing", got)
	}
	for _, text := range []string{"", "x", `{"inode":1,"initial_bytes":9,"written_bytes":9}`, `{"inode":1,"initial_bytes":-9}`, `{"initial_bytes":9,"largest_bytes":9,"before_bytes":-1}`, `{"initial_bytes":9,"largest_bytes":8}`} {
		if got := decodeNote([]byte(text)); got != (limitNote{}) {
			t.Errorf("%q: got %+v, want nothing", text, got)
		}
	}
	err := writeNote(filepath.Join(segment, "no", "folder"), good)
	if err == nil || !strings.Contains(err.Error(), "folder.lull") {
		t.Errorf("no folder: error %v, want it to name the file", err)
	}
}

func FuzzDecodeSegmentAndNote(f *testing.F) {
	f.Add(rawSegment(9, 4, 0), []byte(`{"inode":1,"initial_bytes":9,"largest_bytes":9,"before_bytes":9,"written_bytes":5,"epoch":3}`), int64(7))
	f.Add([]byte{}, []byte(`{"initial_bytes":1e30}`), int64(-1))
	f.Fuzz(func(t *testing.T, raw, note []byte, ask int64) {
		s, err := decodeSegment(raw)
		if err != nil {
			return
		}
		if s.limit <= 0 || s.used < 0 || s.ahead < 0 || s.held() < 0 {
			t.Fatalf("accepted %+v", s)
		}
		s.inode = 1
		n := decodeNote(note).follow(s)
		var p pageIDs
		p.see(s)
		if got := n.clamp(size.Bytes(ask), p.size()); got < 1 || got > 1 && got >= n.Initial || n.Initial > size.Bytes(max(s.limit, int64(decodeNote(note).Initial))) {
			t.Fatalf("clamp %d of %+v over %+v", got, n, s)
		}
	})
}
