package slo

import "time"

// Span is the length of a sliding window and of the slots that it moves by.
type Span struct {
	Name         string
	Length, Slot time.Duration
}

// spans is how many windows there are.
const spans = 4

// Spans are the windows of every objective. They hold a burn that is fast (1m,
// 5m), one that is slow (1h), and the period of the budget (30d).
func Spans() [spans]Span {
	return [spans]Span{
		{"1m", time.Minute, time.Second},
		{"5m", 5 * time.Minute, 5 * time.Second},
		{"1h", time.Hour, time.Minute},
		{"30d", 30 * 24 * time.Hour, time.Hour},
	}
}

// window counts exactly what fell into the slot that holds now and the
// Length/Slot - 1 slots before it; it is at most one slot shorter than its name.
// Its memory does not depend on how much is counted.
type window struct {
	slot time.Duration
	ring []Tally
	head int64 // the newest slot that was counted into
	sum  Tally // of the ring
}

func newWindow(s Span) window {
	return window{slot: s.Slot, ring: make([]Tally, s.Length/s.Slot)}
}

// advance moves the window to now. A time before the newest slot, from a caller
// that was overtaken, counts as the newest slot.
func (w *window) advance(now time.Duration) {
	to := int64(now / w.slot)
	if to <= w.head {
		return
	}
	if to-w.head >= int64(len(w.ring)) {
		clear(w.ring)
		w.sum, w.head = Tally{}, to
		return
	}
	for w.head < to {
		w.head++
		old := &w.ring[w.head%int64(len(w.ring))]
		w.sum.sub(*old)
		*old = Tally{}
	}
}

func (w *window) add(now time.Duration, t Tally) {
	w.advance(now)
	w.ring[w.head%int64(len(w.ring))].add(t)
	w.sum.add(t)
}

func (w *window) read(now time.Duration) Tally {
	w.advance(now)
	return w.sum
}

// series is one kind of sample: all of them, and the windows.
type series struct {
	total   Tally
	windows [spans]window
}

func newSeries() *series {
	s := &series{}
	for i, span := range Spans() {
		s.windows[i] = newWindow(span)
	}
	return s
}

func (s *series) add(now time.Duration, t Tally) {
	s.total.add(t)
	for i := range s.windows {
		s.windows[i].add(now, t)
	}
}
