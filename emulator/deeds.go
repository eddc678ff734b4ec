package emulator

import (
	"slices"

	"github.com/lull-project/lull/emulator/model"
)

// The functions here keep the list of deeds; their callers hold kv.mu.

func (k *kv) add(d deed) {
	k.deeds = append(k.deeds, d)
	k.pending[d.page]++
	if d.stream != nil {
		d.stream.deeds++
	}
	select {
	case k.more <- struct{}{}:
	default:
	}
}

// remove takes a deed off the list; a token that waited for it is told.
func (k *kv) remove(i int) {
	d := k.deeds[i]
	k.deeds = slices.Delete(k.deeds, i, i+1)
	k.pending[d.page]--
	s := d.stream
	if s == nil {
		return
	}
	s.deeds--
	if s.deeds == 0 && s.owed > 0 {
		s.advance(s.owed, s.owedReason)
		s.owed = 0
	}
}

// drop leaves out the mapping of the page if it has not begun.
func (k *kv) drop(page int) bool {
	for i := len(k.deeds) - 1; i >= 0; i-- {
		d := k.deeds[i]
		if d.page != page {
			continue
		}
		if d.kind != model.Map || i == 0 && k.busy {
			return false
		}
		k.remove(i)
		return true
	}
	return false
}
