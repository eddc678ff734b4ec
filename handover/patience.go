package handover

import "time"

// wear is the training time that a shrink costs a trainer, from the total that it
// reports and the shrinks that it was sent.
type wear struct {
	heard   bool          // a report has come
	told    time.Duration // its total
	shrinks uint64        // sent so far
	counted uint64        // of them, those before the last report
	each    time.Duration // 0 unknown
}

// wearMemory is how many shrinks the mean remembers.
const wearMemory = 32

// learn takes a report's total. The first says only where to count from: a job that
// was there before this sidecar lost work by shrinks that nobody here sent. One that
// went back is another process's.
func (w *wear) learn(total time.Duration) {
	n := w.shrinks - w.counted
	if more := total - w.told; w.heard && n > 0 && more >= 0 {
		part := min(1, float64(n)/wearMemory)
		if w.each == 0 {
			part = 1
		}
		w.each += time.Duration(part * float64(more/time.Duration(n)-w.each))
	}
	w.heard, w.told, w.counted = true, total, w.shrinks
}

// mostPatience is, in horizons, the longest that an unused bound waits.
const mostPatience = 10

// rental is how long bytes that training would make rate of a second, in currency,
// are kept before they are lent: until training has lost by them what one shrink
// costs it, which is when it is no longer sure that keeping them is the dearer.
// Whatever comes, that costs at most twice what one would pay who knew (ski
// rental: Karlin, Manasse, Rudolph and Sleator, Competitive Snoopy Caching, 1988).
func (h *Handover) rental(shrink, rate float64) time.Duration {
	most := mostPatience * h.cfg.Horizon
	if shrink >= rate*most.Seconds() {
		return most
	}
	return max(time.Duration(shrink/rate*float64(time.Second)), h.insured())
}
