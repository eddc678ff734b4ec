package engine

import (
	"fmt"
	"os"
)

// boundPage writes the page that carries orders to the engine. Its file was made
// by the engine; a sidecar that starts again continues where the last one was.
type boundPage struct {
	f     *os.File
	seq   uint64
	words []uint64
}

// openBoundPage opens the page and takes over what it says.
func openBoundPage(path string) (*boundPage, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	raw := make([]byte, pageSize)
	n, err := f.ReadAt(raw, 0)
	if n < pageHeader {
		f.Close()
		return nil, fmt.Errorf("bound page %s: %d bytes, want %d: %w", path, n, pageSize, err)
	}
	seq, words, err := decodePage(boundMagic, raw[:n], boundWords)
	if err != nil {
		// A predecessor died while it wrote, or somebody damaged it: the engine
		// keeps its bound, and the next order makes the page whole.
		seq, words = 0, make([]uint64, boundWords)
	}
	return &boundPage{f: f, seq: seq, words: words}, nil
}

// write publishes the words as they are. One write call: the checksum tells a
// reader that it met half of it.
func (p *boundPage) write() error {
	p.seq += 2
	if _, err := p.f.WriteAt(encodePage(boundMagic, p.seq, p.words), 0); err != nil {
		return fmt.Errorf("write %s: %w", p.f.Name(), err)
	}
	return nil
}

func (p *boundPage) close() error { return p.f.Close() }
