package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lull-project/lull/size"
)

// pageIDUnknown stands for the bytes of a page-id before any was seen mapped: the
// largest of the usual models (2 MiB pages of 80 layers, K and V).
const pageIDUnknown = 320 * size.MiB

// limitNote is what Lull remembers of a segment, which has no room for it: the
// limit that the engine began with and the last order. It lies beside the segment
// so that a restarted sidecar neither takes its predecessor's limit for the pool
// nor obeys an older epoch.
type limitNote struct {
	// Inode is of the segment that the rest is about.
	Inode uint64 `json:"inode"`
	// Initial is the limit that the engine began with. A larger one makes it hand
	// out pages that it has no addresses for.
	Initial size.Bytes `json:"initial_bytes"`
	// Largest is the largest limit seen in this segment: what the server's tokens
	// are the tokens of. A limit that somebody lowered makes no token smaller.
	Largest size.Bytes `json:"largest_bytes"`
	// Asked is the last order's bound and Written the limit that came of it, Before
	// what stood in the segment then: a note is written first, so either may be there
	// after a crash.
	Asked   size.Bytes `json:"asked_bytes"`
	Written size.Bytes `json:"written_bytes"`
	Before  size.Bytes `json:"before_bytes"`
	Epoch   uint64     `json:"epoch"`
	// Prior is the epoch of Before, 0 if it was nobody's order.
	Prior uint64 `json:"prior_epoch"`
}

// follow is the note after a look at the segment. A limit that is not ours is
// another's order or a restarted engine's beginning; which one, the segment does
// not say, so the smaller of it and the old beginning counts as the pool.
func (n limitNote) follow(s segmentInfo) limitNote {
	limit := size.Bytes(s.limit)
	switch {
	case n.Inode != s.inode || n.Initial <= 0:
		return limitNote{Inode: s.inode, Initial: limit, Largest: limit, Before: limit}
	case limit == n.Written:
		return n
	case limit == n.Before:
		return limitNote{Inode: s.inode, Initial: n.Initial, Largest: max(n.Largest, limit), Before: limit}
	}
	return limitNote{Inode: s.inode, Initial: min(n.Initial, limit), Largest: max(n.Largest, limit), Before: limit}
}

// ordered is the note of an order.
func (n limitNote) ordered(s segmentInfo, epoch uint64, asked, limit size.Bytes) limitNote {
	n.Before, n.Prior = size.Bytes(s.limit), n.Epoch
	n.Asked, n.Written, n.Epoch = asked, limit, epoch
	return n
}

// clamp brings a bound into what the segment can say. At most one byte below the
// beginning: kvcached 0.1.5 takes the beginning itself for "no order" and stays
// shrunk, and this way no order ever looks like a fresh start. At least one
// page-id: zero is ignored, and less leaves the engine without a page.
func (n limitNote) clamp(b, pageID size.Bytes) size.Bytes {
	return max(1, min(max(b, pageID), n.Initial-1))
}

// pageIDs learns the bytes of a page-id: everything that the engine maps is a
// multiple of it.
type pageIDs struct{ gcd int64 }

func (p *pageIDs) see(s segmentInfo) { p.gcd = gcd(gcd(p.gcd, s.used), s.ahead) }

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// size is the largest that a page-id can be by what was seen.
func (p *pageIDs) size() size.Bytes {
	if p.gcd == 0 {
		return pageIDUnknown
	}
	return size.Bytes(p.gcd)
}

// notePath is beside the segment; kvcached's tools look at files of 24 bytes only.
func notePath(segment string) string { return segment + ".lull" }

// decodeNote reads a note; what is damaged says nothing.
func decodeNote(raw []byte) limitNote {
	var n limitNote
	if json.Unmarshal(raw, &n) != nil || n.Initial <= 0 || int64(n.Initial) > segmentMost ||
		n.Written < 0 || n.Written >= n.Initial || n.Before < 0 || n.Before > size.Bytes(segmentMost) || n.Largest < n.Initial || n.Largest > size.Bytes(segmentMost) {
		return limitNote{}
	}
	return n
}

// readNote reads the note of a segment; one that somebody else could have
// written, or none, says nothing.
func readNote(segment string) limitNote {
	f, err := os.OpenFile(notePath(segment), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return limitNote{}
	}
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return limitNote{}
	}
	raw := make([]byte, 4096)
	n, _ := f.ReadAt(raw, 0)
	return decodeNote(raw[:n])
}

// writeNote replaces the note whole.
func writeNote(segment string, n limitNote) error {
	raw, err := json.Marshal(n)
	if err != nil {
		return err
	}
	tmp := fmt.Sprintf("%s.%d", notePath(segment), os.Getpid())
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(tmp, notePath(segment))
	}
	if err != nil {
		_ = os.Remove(tmp)
	}
	return err
}
