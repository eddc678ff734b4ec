package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The shared pages of lull-vllm: docs/VLLM.md has the table, vllm_plugin/testdata
// the vectors that both languages read.
const (
	pageVersion = 1
	pageSize    = 4096
	pageHeader  = 32 // magic 8, version u32, field count u32, sequence u64, checksum u64
	pageWords   = pageSize / 8
	// A write takes well below a microsecond, so a page that stays torn has a
	// writer that lost its processor half-way: after pageSpins reads the next ones
	// are pageNap apart, and after pageTries the page counts as damaged. Fewer
	// tries take a busy machine's page for a damaged one.
	pageSpins = 200
	pageTries = 600
	pageNap   = 100 * time.Microsecond
)

const (
	telemetryMagic = "LULLKVT\x01"
	boundMagic     = "LULLKVB\x01"
)

// errTorn: a write is under way, or the page was damaged.
var errTorn = errors.New("torn page")

// Words of the telemetry page, in their order.
const (
	wordInstance = iota
	wordBeats
	wordWrittenNS
	wordEnginePID
	wordMode
	wordFlags
	wordRanks
	wordRanksAlive
	wordBlockTokens
	wordBlockBytes
	wordPoolBlocks
	wordMaxModelLen
	wordBaselineBytes
	wordBlocksUsed
	wordBlocksFree
	wordBlocksCached
	wordBlocksWithdrawn
	wordBlocksPending
	wordBlocksMapped
	wordBoundBytes
	wordRequestedEpoch
	wordRequestedBytes
	wordAppliedEpoch
	wordConfirmedEpoch
	wordRefused
	wordFloorBytes
	wordRunning
	wordWaiting
	wordWaitingCapacity
	wordWaitingDeferred
	wordPreemptions
	wordSteps
	wordStepTokens
	wordStepNS
	wordPrefixQueries
	wordPrefixHits
	wordEvictions
	wordShortages
	wordShortBytes
	wordFaults
	wordGivenBackBytes
	wordGivenBackNS
	wordWorkerPID0
	wordObeyedStep = wordWorkerPID0 + 8
	wordObeyedLeft = wordObeyedStep + 1
	telemetryWords = wordObeyedLeft + 1
)

// Words of the bound page.
const (
	boundInstance = iota
	boundEpoch
	boundBytes
	boundBeats
	boundLeaseUS
	boundSidecarPID
	boundWords
)

// Values of wordMode.
const (
	modeTelemetry = 0 // no bound: the pool is static
	modeHostPages = 1 // blocks' pages go back to the kernel
	modeKVCached  = 2 // kvcached's limit
)

// Bits of wordFlags.
const (
	flagClamped      = 1 << 0
	flagSidecarGone  = 1 << 1
	flagLeaseRaised  = 1 << 2
	flagBroken       = 1 << 3
	flagBoundCorrupt = 1 << 4
)

// decodePage checks a copy of a page and returns its sequence and n words;
// those that the writer did not know are 0.
func decodePage(magic string, raw []byte, n int) (uint64, []uint64, error) {
	if len(raw) < pageHeader {
		return 0, nil, fmt.Errorf("page: %d bytes, want at least %d", len(raw), pageHeader)
	}
	if got := string(raw[:8]); got != magic {
		return 0, nil, fmt.Errorf("page: magic %q, want %q", got, magic)
	}
	version, count := binary.LittleEndian.Uint32(raw[8:]), int(binary.LittleEndian.Uint32(raw[12:]))
	if version != pageVersion {
		return 0, nil, fmt.Errorf("page: version %d, want %d", version, pageVersion)
	}
	end := pageHeader + 8*count
	if end > pageSize || end > len(raw) {
		return 0, nil, fmt.Errorf("page: %d fields do not fit in %d bytes", count, len(raw))
	}
	seq := binary.LittleEndian.Uint64(raw[16:])
	if seq&1 == 1 {
		return 0, nil, fmt.Errorf("page: sequence %d is odd: %w", seq, errTorn)
	}
	if pageSum(seq, raw[pageHeader:end]) != binary.LittleEndian.Uint64(raw[24:]) {
		return 0, nil, fmt.Errorf("page: checksum does not match at sequence %d: %w", seq, errTorn)
	}
	words := make([]uint64, n)
	for i := range min(n, count) {
		words[i] = binary.LittleEndian.Uint64(raw[pageHeader+8*i:])
	}
	return seq, words, nil
}

// encodePage is a whole page of these words; seq is even.
func encodePage(magic string, seq uint64, words []uint64) []byte {
	raw := make([]byte, pageHeader+8*len(words))
	copy(raw, magic)
	binary.LittleEndian.PutUint32(raw[8:], pageVersion)
	binary.LittleEndian.PutUint32(raw[12:], uint32(len(words)))
	binary.LittleEndian.PutUint64(raw[16:], seq)
	for i, w := range words {
		binary.LittleEndian.PutUint64(raw[pageHeader+8*i:], w)
	}
	binary.LittleEndian.PutUint64(raw[24:], pageSum(seq, raw[pageHeader:]))
	return raw
}

// pageSum covers the sequence and the words.
func pageSum(seq uint64, body []byte) uint64 {
	head := binary.LittleEndian.AppendUint64(nil, seq)
	return uint64(crc32.Update(crc32.ChecksumIEEE(head), crc32.IEEETable, body))
}

// mappedPage is a page that another process writes, mapped read-only.
type mappedPage struct {
	mem   []byte
	inode uint64
}

// mapPage maps the page at path. The file may be replaced by a successor, which
// this mapping does not see.
func mapPage(path string) (*mappedPage, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", path, err)
	}
	if st.Size < pageSize {
		return nil, fmt.Errorf("page %s: %d bytes, want %d", path, st.Size, pageSize)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, pageSize, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return &mappedPage{mem: mem, inode: st.Ino}, nil
}

// current says whether path is still the file that is mapped.
func (p *mappedPage) current(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Ino == p.inode
}

// read copies and checks the page without a system call; it reads again while a
// write is under way.
func (p *mappedPage) read(magic string, n int) (words []uint64, err error) {
	var raw [pageSize]byte
	for try := range pageTries {
		if try > pageSpins {
			time.Sleep(pageNap)
		}
		if err := p.copyTo(&raw); err != nil {
			return nil, err
		}
		_, words, err = decodePage(magic, raw[:], n)
		if !errors.Is(err, errTorn) {
			return words, err
		}
	}
	return nil, err
}

// copyTo loads the page word by word, the sequence before and after. A page that
// was cut short faults; that becomes an error here and no signal.
func (p *mappedPage) copyTo(raw *[pageSize]byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("page: reading the mapping: %v", r)
		}
	}()
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&p.mem[0])), pageWords)
	const seqWord = 2
	seq := atomic.LoadUint64(&words[seqWord])
	count := min(int(atomic.LoadUint64(&words[1])>>32), (pageSize-pageHeader)/8)
	for i := range pageHeader/8 + count {
		binary.LittleEndian.PutUint64(raw[8*i:], atomic.LoadUint64(&words[i]))
	}
	if atomic.LoadUint64(&words[seqWord]) != seq {
		binary.LittleEndian.PutUint64(raw[8*seqWord:], 1) // torn: decodePage says so
	}
	return nil
}

func (p *mappedPage) close() error { return unix.Munmap(p.mem) }
