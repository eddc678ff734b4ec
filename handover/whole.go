package handover

import "time"

// Engines whose pool moves whole (EngineConfig.Whole): a stock vLLM that lets its
// KV cache go while nobody asks it anything, and maps it again for the next
// request. That takes them far longer than a bound takes others, and loses what
// they cached, so only a long lull is worth it, and nothing is kept in reserve.

// wholeIdle is the default of EngineConfig.Idle. Shorter lends more and makes
// more requests wait for a pool, longer the reverse.
const wholeIdle = 30 * time.Second

// all is b for most engines; of a pool that moves whole, all for anything.
func (e *engine) all(b Bytes) Bytes {
	if e.cfg.Whole && b > 0 {
		return e.cfg.Pool
	}
	return b
}

// some is b for most engines; of a pool that moves whole, nothing for a part.
func (e *engine) some(b Bytes) Bytes {
	if e.cfg.Whole && b < e.cfg.Pool {
		return 0
	}
	return b
}

// part is what of spare bytes of its bound the engine gives up for so many that are
// lacking: whole blocks, or all that a pool that moves whole has.
func (e *engine) part(spare, lack Bytes) Bytes {
	if e.cfg.Whole {
		return spare
	}
	return min(spare, lack.CeilTo(e.block()))
}

// lull is how long the engine must have been without need before its pool goes:
// what was configured, and two mean gaps between arrivals, as for any bound.
func (h *Handover) lull(e *engine) time.Duration {
	return max(e.cfg.Idle, h.worthMoving(), time.Duration(min(e.gaps(), time.Hour.Seconds())*float64(time.Second)))
}
