package proxy

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
)

// Prompts are marked a quarter of an octave apart, in bytes of the body.
const leastMark, mostMark = 1 << 10, 1 << 20

// Mark is how a prompt begins, told without its text: prompts whose marks have the
// same Sum begin alike up to there.
type Mark struct {
	// Upto is the text up to here in bytes, or the token ids of a prompt that was given
	// as those; a lower bound.
	Upto int
	// Sum is of no use outside of this process.
	Sum uint64
}

// markSeed makes sums that no client can foresee.
var markSeed = maphash.MakeSeed()

// prefix sums a prompt as it stands in the body. Bodies that begin alike are prompts
// that do; alike prompts that are written otherwise are not seen.
type prefix struct {
	sums  [textSlots]maphash.Hash
	begun [textSlots]bool
	slot  node // of the prompt that is marked
	twice bool // there is a second one: nobody knows their order
	size  int  // bytes of it so far
	text  int
	next  int // where the next mark lies, 0 nowhere
	marks []Mark
}

// begin is a member of the text. One that comes twice counts once, the last.
func (s *requestScan) begin(member node) {
	p, slot := &s.prefix, member-nodeText
	p.sums[slot].SetSeed(markSeed)
	p.begun[slot] = true
	if slot == slotSystem || slot == slotTools {
		return
	}
	p.twice = p.twice || p.next > 0 || len(p.marks) > 0
	p.slot, p.size, p.text, p.next = slot, 0, 0, leastMark
}

// piece sums a part of a member. Tools and system prompt are summed whole, since a
// server may put them before the rest.
func (s *requestScan) piece(member node, b []byte, text int) {
	p, slot := &s.prefix, member-nodeText
	h := &p.sums[slot]
	switch {
	case slot == slotSystem || slot == slotTools:
		_, _ = h.Write(b)
		return
	case p.next == 0:
		return // beyond the last mark
	}
	for p.next > 0 && p.size+len(b) >= p.next {
		k := p.next - p.size
		_, _ = h.Write(b[:k])
		p.text += min(k, text)
		p.mark(s.text[slot].ids, h.Sum64())
		b, text, p.size = b[k:], max(text-k, 0), p.next
		p.next = markAfter(p.next)
	}
	_, _ = h.Write(b)
	p.size, p.text = p.size+len(b), p.text+text
}

// mark notes a place, unless nothing has come to the text since the last.
func (p *prefix) mark(ids int, sum uint64) {
	upto := max(p.text, 0)
	if ids > 0 {
		upto = ids
	}
	if n := len(p.marks); upto == 0 || n > 0 && p.marks[n-1].Upto >= upto {
		return
	}
	p.marks = append(p.marks, Mark{Upto: upto, Sum: sum})
}

func markAfter(n int) int {
	if n >= mostMark {
		return 0
	}
	return n + 1<<(bits.Len(uint(n))-3)
}

// marks are those of a whole body with one prompt. Bodies of which the tools, the
// system prompt, the model or the path differ have none in common.
func (s *requestScan) marks(r *Request) []Mark {
	p := &s.prefix
	beside := s.text[slotPrompt].media != [mediaKinds]int{} // of the body, before the prompt perhaps
	if len(p.marks) == 0 || p.twice || beside || !s.json.whole() || s.text[slotPrompt].prompts > 1 {
		return nil
	}
	var h maphash.Hash
	h.SetSeed(markSeed)
	_, _ = h.WriteString(r.Path)
	_ = h.WriteByte(0)
	_, _ = h.WriteString(s.model)
	_ = h.WriteByte(byte(p.slot))
	for _, slot := range []node{slotSystem, slotTools} {
		var sum uint64
		if p.begun[slot] {
			sum = p.sums[slot].Sum64()
		}
		_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, sum))
	}
	base := h.Sum64()
	for i := range p.marks {
		p.marks[i].Sum ^= base
	}
	return p.marks
}
