package emulator

import (
	"context"
	"sync"

	"github.com/lull-project/lull/emulator/memory"
	"github.com/lull-project/lull/emulator/model"
	"github.com/lull-project/lull/size"
)

// kv makes the model's pages real. Giving a page back takes microseconds and is
// done at once; filling one takes 0.1 to 0.5 ms, and many times that in a virtual
// machine whose host must find the memory first, so pages are filled in order by
// a goroutine of their own. The engine's clock goes on meanwhile: a token is told
// as soon as the pages of its own request are as they must be, and is late only
// when those are.
type kv struct {
	pool    *memory.Pool
	perPage int // memory pages to a page of the model

	mu      sync.Mutex
	real    int    // pages of the model that are mapped, until they are no more
	deeds   []deed // to do, in order; the first may be under way
	pending []int  // deeds by page of the model
	busy    bool   // the first deed is under way
	more    chan struct{}
}

// deed is a page to map, or one to unmap that could not be unmapped at once
// because its mapping was still to come.
type deed struct {
	kind   model.Kind // Map or Unmap
	page   int
	stream *stream // whose tokens wait for it; nil when nobody's do
}

func newKV(pool *memory.Pool, pages, perPage int) *kv {
	return &kv{pool: pool, perPage: perPage, pending: make([]int, pages), more: make(chan struct{}, 1)}
}

// mapPage notes that the stream needs the page.
func (k *kv) mapPage(page int, s *stream) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.add(deed{kind: model.Map, page: page, stream: s})
}

// unmapPage gives the page back: at once, or in its turn when it is still to be
// mapped for an answer that ends. With drop its request ends without an answer,
// and a mapping that has not begun is left out.
func (k *kv) unmapPage(page int, s *stream, drop bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if drop && k.drop(page) {
		return nil
	}
	if k.pending[page] == 0 {
		k.real--
		return k.each(page, k.pool.Unmap)
	}
	k.add(deed{kind: model.Unmap, page: page, stream: s})
	return nil
}

// tell lets the client have the stream's first n tokens once its pages are as
// they must be.
func (k *kv) tell(s *stream, n int, reason model.Reason) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.deeds > 0 {
		s.owed, s.owedReason = n, reason
		return
	}
	s.advance(n, reason)
}

// held is the most that is mapped from now until all deeds are done: a page that
// is to be mapped counts already, one that is to be unmapped counts until it is.
// The model orders them so that this stays within the bound.
func (k *kv) held() size.Bytes {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pool.Pinned() {
		return size.Bytes(k.pool.Mapped())
	}
	pages, most := k.real, k.real
	for _, d := range k.deeds {
		if d.kind == model.Map {
			pages++
		} else {
			pages--
		}
		most = max(most, pages)
	}
	return size.Bytes(most*k.perPage) * memory.PageBytes
}

// run performs deeds until ctx ends or one goes wrong.
func (k *kv) run(ctx context.Context) error {
	for ctx.Err() == nil {
		did, err := k.next()
		if err != nil {
			return err
		}
		if did {
			continue
		}
		select {
		case <-k.more:
		case <-ctx.Done():
		}
	}
	return nil
}

// next performs the first deed; false when there is none.
func (k *kv) next() (bool, error) {
	k.mu.Lock()
	if len(k.deeds) == 0 {
		k.mu.Unlock()
		return false, nil
	}
	d := k.deeds[0]
	k.busy = true
	k.mu.Unlock()

	do, change := k.pool.Map, 1
	if d.kind == model.Unmap {
		do, change = k.pool.Unmap, -1
	}
	err := k.each(d.page, do)

	k.mu.Lock()
	defer k.mu.Unlock()
	k.busy = false
	k.real += change
	k.remove(0)
	return true, err
}

// each does to the memory pages of one page of the model.
func (k *kv) each(page int, do func(int) error) error {
	for i := range k.perPage {
		if err := do(page*k.perPage + i); err != nil {
			return err
		}
	}
	return nil
}
