package emulator

import (
	"github.com/lull-project/lull/emulator/memory"
	"github.com/lull-project/lull/emulator/model"
	"github.com/lull-project/lull/size"
)

// deed is one thing that the engine does to memory, or a last token that waits
// until the memory of its request is free.
type deed struct {
	kind   model.Kind // Map, Unmap, or Token for a last one
	page   int
	stream *stream
	reason model.Reason
	tokens int
}

// kv performs deeds in order, one at a time, so that the engine can listen
// between two of them: a page takes 50 to 500 µs to fill.
type kv struct {
	pool    *memory.Pool
	perPage int // memory pages to a page of the model
	deeds   []deed
	done    int // deeds performed; the rest of the slice is to do
}

func (k *kv) add(d deed) { k.deeds = append(k.deeds, d) }

func (k *kv) idle() bool { return k.done == len(k.deeds) }

// held is the most that is mapped from now until all deeds are done: a page that
// is to be mapped counts already, one that is to be unmapped counts until it is.
// The model orders them so that this stays within the bound.
func (k *kv) held() size.Bytes {
	held := k.pool.Mapped()
	most := held
	for _, d := range k.deeds[k.done:] {
		switch d.kind {
		case model.Map:
			held += int64(k.perPage) * memory.PageBytes
			most = max(most, held)
		case model.Unmap:
			held -= int64(k.perPage) * memory.PageBytes
		}
	}
	return size.Bytes(most)
}

// next takes the first deed off the list and performs it, if it is about memory.
func (k *kv) next() (deed, error) {
	d := k.deeds[k.done]
	k.done++
	if k.idle() {
		k.deeds, k.done = k.deeds[:0], 0
	}
	switch d.kind {
	case model.Map:
		return d, k.each(d.page, k.pool.Map)
	case model.Unmap:
		return d, k.each(d.page, k.pool.Unmap)
	}
	return d, nil
}

func (k *kv) each(page int, do func(int) error) error {
	for i := range k.perPage {
		if err := do(page*k.perPage + i); err != nil {
			return err
		}
	}
	return nil
}
