package handover

import (
	"slices"
	"time"
)

// delayMemory is how many measured delays count.
const delayMemory = 16

// allocDelay is the time that a handover may take without a request noticing.
// It is the least of the last measured delays: a hold that was not needed costs
// less than a running request that was preempted.
type allocDelay struct {
	given time.Duration // the config's, until one was measured
	ring  [delayMemory]time.Duration
	n     int
}

func (a *allocDelay) add(d time.Duration) {
	a.ring[a.n%delayMemory] = d
	a.n++
}

func (a *allocDelay) value() time.Duration {
	if a.n == 0 {
		return a.given
	}
	return slices.Min(a.ring[:min(a.n, delayMemory)])
}

// onAllocDelaySeen learns the engine's own arrival → allocation delay.
func (h *Handover) onAllocDelaySeen(s AllocDelaySeen) {
	if e := h.engine(s.Engine); e != nil && s.Delay > 0 {
		e.delay.add(s.Delay)
	}
}
