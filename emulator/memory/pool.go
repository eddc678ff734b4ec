package memory

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// PageBytes is the unit that memory is mapped in: one huge page of x86-64 and
// of arm64 with 4 KiB pages, so that the kernel fills and frees it in one go.
const PageBytes = 2 << 20

// smallPage is what a touch must cover when the kernel cannot populate.
const smallPage = 4 << 10

// Pool is a reserved range of addresses, page by page mapped or not.
type Pool struct {
	reserved []byte // as mmap gave it
	aligned  []byte // its pages, from the first multiple of PageBytes on
	isMapped []bool
	mapped   atomic.Int64
	pinned   bool
}

// Reserve takes addresses for so many bytes, a multiple of PageBytes; no memory
// is used until Map.
func Reserve(bytes int64) (*Pool, error) {
	if bytes < 0 || bytes%PageBytes != 0 {
		return nil, fmt.Errorf("memory: reserve %d bytes: want a multiple of %d", bytes, PageBytes)
	}
	if bytes == 0 {
		return &Pool{}, nil
	}
	// One page more than asked: the kernel aligns to 4 KiB only.
	region, err := unix.Mmap(-1, 0, int(bytes+PageBytes), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("memory: reserve %d bytes of addresses: %w", bytes, err)
	}
	skip := int(-address(region) & (PageBytes - 1))
	p := &Pool{reserved: region, aligned: region[skip : skip+int(bytes)], isMapped: make([]bool, bytes/PageBytes)}
	// A kernel without transparent huge pages says EINVAL; small pages do as well,
	// more slowly.
	if err := unix.Madvise(p.aligned, unix.MADV_HUGEPAGE); err != nil && !errors.Is(err, unix.EINVAL) {
		return nil, errors.Join(fmt.Errorf("memory: ask for huge pages: %w", err), p.Close())
	}
	return p, nil
}

// Pages is the size of the pool.
func (p *Pool) Pages() int { return len(p.isMapped) }

// Mapped is the bytes that are mapped. A page counts from before its memory is
// taken until after it is given back, so the figure is never too low.
func (p *Pool) Mapped() int64 { return p.mapped.Load() * PageBytes }

// Map makes the page real, filled with zeros. A page that is real already is an
// error: somebody's books are wrong.
func (p *Pool) Map(page int) error {
	if err := p.check("map", page, false); err != nil {
		return err
	}
	p.isMapped[page] = true
	if p.pinned {
		return nil
	}
	p.mapped.Add(1)
	if err := populate(p.page(page)); err != nil {
		return fmt.Errorf("memory: map page %d: %w", page, err)
	}
	return nil
}

// Unmap gives the page back to the kernel.
func (p *Pool) Unmap(page int) error {
	if err := p.check("unmap", page, true); err != nil {
		return err
	}
	if p.pinned {
		p.isMapped[page] = false
		return nil
	}
	if err := unix.Madvise(p.page(page), unix.MADV_DONTNEED); err != nil {
		return fmt.Errorf("memory: unmap page %d: %w", page, err)
	}
	p.isMapped[page] = false
	p.mapped.Add(-1)
	return nil
}

// MapAll makes every page real.
func (p *Pool) MapAll() error {
	for page := range p.isMapped {
		if err := p.Map(page); err != nil {
			return err
		}
	}
	return nil
}

// Pin makes every page real for good: from now on Map and Unmap only keep the
// books, as in a server that allocates its pool once. It comes before any Map.
func (p *Pool) Pin() error {
	if err := p.MapAll(); err != nil {
		return err
	}
	clear(p.isMapped)
	p.pinned = true
	return nil
}

// Pinned says that every page is real for good.
func (p *Pool) Pinned() bool { return p.pinned }

// Close gives everything back, addresses too. It may be called twice.
func (p *Pool) Close() error {
	if p.reserved == nil {
		return nil
	}
	region := p.reserved
	p.reserved, p.aligned, p.isMapped = nil, nil, nil
	p.mapped.Store(0)
	if err := unix.Munmap(region); err != nil {
		return fmt.Errorf("memory: give the pool's addresses back: %w", err)
	}
	return nil
}

func (p *Pool) page(i int) []byte { return p.aligned[i*PageBytes : (i+1)*PageBytes] }

func (p *Pool) check(op string, page int, want bool) error {
	if page < 0 || page >= len(p.isMapped) {
		return fmt.Errorf("memory: %s page %d: the pool has pages 0 to %d", op, page, len(p.isMapped)-1)
	}
	if p.isMapped[page] != want {
		return fmt.Errorf("memory: %s page %d: mapped is %v, want %v", op, page, !want, want)
	}
	return nil
}
