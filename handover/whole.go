package handover

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Engines whose pool moves whole (EngineConfig.Whole): a stock vLLM that lets its
// KV cache go while nobody asks it anything, and maps it again for the next
// request; a model of a Triton that is unloaded and loaded again. That takes them
// far longer than a bound takes others, and loses what they cached, so only a long
// lull is worth it, and nothing is kept in reserve.

// wholeIdle is the default of EngineConfig.Idle. Shorter lends more and makes
// more requests wait for a pool, longer the reverse.
const wholeIdle = 30 * time.Second

// validateWhole names the first thing wrong with what is only for pools that move
// whole.
func (c EngineConfig) validateWhole() error {
	key := fmt.Sprintf("engines.%s", c.ID)
	switch {
	case c.Whole && c.Fence != FenceHard:
		return fmt.Errorf("%s.fence: got %v for an engine that gives its pool whole, want hard", key, c.Fence)
	case c.Await < 0:
		return fmt.Errorf("%s.await: got %v, want 0 (it keeps requests itself) or more", key, c.Await)
	case c.Await > 0 && !c.Whole:
		return fmt.Errorf("%s.await: got %v for an engine whose pool does not go whole, want none", key, c.Await)
	case c.Warm < 0:
		return fmt.Errorf("%s.warm: got %v, want 0 (none) or more", key, c.Warm)
	case c.Warm > 0 && (!c.Whole || c.Server == ""):
		return fmt.Errorf("%s.warm: got %v, want it for an engine that gives its pool whole and has a server", key, c.Warm)
	case c.Idle < 0:
		return fmt.Errorf("%s.idle: got %v, want 0 (%v) or more", key, c.Idle, wholeIdle)
	}
	return nil
}

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

// aimWhole sets the targets of an engine whose pool moves whole: what comes later
// is awaited by the lull. A pool that could not be moved stays where it is for a
// while.
func (h *Handover) aimWhole(e *engine, demand Bytes) {
	e.rests = h.now < e.restUntil
	e.target = e.clamp(max(demand, e.live()))
	if e.rests {
		e.target = e.bound
	}
	e.lend = e.target
}

// live is not 0 while an engine whose pool moves whole has a request, whatever little
// that needs.
func (e *engine) live() Bytes {
	if e.cfg.Whole && len(e.requests) > 0 {
		return 1
	}
	return 0
}

// covers says that the engine's confirmed bound is enough for a need: a whole pool
// is for any, since no more comes.
func (e *engine) covers(need Bytes) bool {
	return need <= e.usable() || e.cfg.Whole && e.usable() >= e.cfg.Pool
}

// away says that the engine would fail a request, since its pool is gone, and that
// the pool can be awaited.
func (h *Handover) away(e *engine) bool {
	return e.cfg.Await > 0 && h.cfg.Mode != ModeStatic && e.epoch > 0 && !e.down && !e.rests && e.usable() < e.cfg.Pool && e.canCome()
}

// hopeless says that the pool that requests of the engine wait for does not come
// soon: it is down, the pool could not be moved, or there is no room for it.
func (h *Handover) hopeless(e *engine) bool {
	return e.cfg.Await > 0 && !e.covers(e.cfg.Pool) && !h.away(e)
}

// lost says that the engine's pool is gone by nobody's order: it restarted between
// two samples, or somebody else took the pool away.
func (e *engine) lost(s EngineSeen) bool {
	return e.cfg.Await > 0 && e.bound > 0 && s.Held == 0 && s.BoundEpoch == 0
}

// giveUp takes back an order to an engine that could not move its pool, and leaves
// the pool there for a while. Requests go to it as they are: with its pool it serves
// them, without it it says itself why not.
func (h *Handover) giveUp(e *engine) {
	e.restUntil, e.rests = h.now+wholeIdle, true
	back := e.cfg.Pool
	if e.bound > 0 {
		back = 0
	}
	h.setBound(e, back, ReasonUndo)
}

// warm says that an idle pool stays there for the next request: those of its server
// that expect most requests do, as far as EngineConfig.Warm goes.
func (h *Handover) warm(e *engine) bool {
	if e.cfg.Warm < e.cfg.Pool {
		return false
	}
	idle := coldest(h.engines)
	slices.Reverse(idle)
	left := e.cfg.Warm
	for _, x := range idle {
		if x.cfg.Server != e.cfg.Server || x.cfg.Pool > left {
			continue
		}
		if x == e {
			return true
		}
		left -= x.cfg.Pool
	}
	return false
}

// coldest are those engines whose pools are there and wanted by no request, the one
// that expects fewest requests first, of those alike the last of the config.
func coldest(all []*engine) []*engine {
	var idle []*engine
	for _, e := range slices.Backward(all) {
		if e.cfg.Whole && e.bound > 0 && e.target == 0 && !e.down {
			idle = append(idle, e)
		}
	}
	slices.SortStableFunc(idle, func(a, b *engine) int { return cmp.Compare(a.pred.PerSecond(), b.pred.PerSecond()) })
	return idle
}

// leaving says that the engine's pool is on its way out.
func (e *engine) leaving() bool { return e.cfg.Whole && e.bound == 0 && !e.settled }

// evict lets pools go that no request wants, where others of the device are lacking
// bytes that training cannot give.
func (h *Handover) evict(d *device, lack Bytes) {
	for _, e := range d.engines {
		lack -= e.kv() - e.bound // on its way
	}
	for _, e := range coldest(d.engines) {
		if lack <= 0 {
			return
		}
		if e.settled && e.fenced {
			lack -= e.kv()
			h.setBound(e, 0, reasonEvict)
		}
	}
}
