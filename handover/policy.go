package handover

import "time"

// forecast sets the engine's two targets, in whole quanta.
//
// target is what the bound must cover or a shrink is ordered: the largest need
// until a shrink ordered then would be done (insured), at the configured
// quantile, and the reserve. Later demand is met by later orders, which is what
// makes lending the rest safe. With prices the reserve alone covers who arrives:
// what is kept for them follows from what it costs and not from a quantile.
//
// lend is what the bound keeps when bytes are given to training: the same, and
// at least the median of the largest need within the settling time, since bytes
// that will sooner be wanted back than not are not worth two handovers.
func (h *Handover) forecast(e *engine) {
	if e.cfg.Fence == FenceStatic {
		e.target, e.lend = e.cfg.Pool, e.cfg.Pool
		return
	}
	h.aim(e)
	demand := e.pred.Demand(h.now, lookInsured, h.cfg.Quantile) + e.foreign()
	if h.priced() && e.ins.derived() {
		demand = e.pred.Need() + e.foreign() // what comes is insured by its price
	}
	demand = max(demand, e.missed)
	if e.cfg.Whole {
		h.aimWhole(e, demand)
		return
	}
	expected := e.pred.Demand(h.now, lookSettled, 0.5) + e.foreign()
	if h.priced() {
		h.cover(e, demand, expected)
		return
	}
	e.target = e.clamp((demand + h.cfg.Reserve).CeilTo(h.cfg.Quantum))
	e.lend = max(e.target, e.clamp((expected + h.cfg.Reserve).CeilTo(h.cfg.Quantum)))
}

// The horizons of an engine's forecast: what a shrink ordered now is insured
// against, and for how long an excess must have been there before it is lent.
const (
	lookInsured = iota
	lookSettled
)

// looked is a time within what a forecast looks at.
func looked(d time.Duration) time.Duration { return min(max(d, time.Millisecond), time.Hour) }

// aim points the first horizon at what is insured now, and the second at the
// settling time, within policy.horizon.
func (h *Handover) aim(e *engine) {
	h.follow(e, lookInsured, h.insured())
	h.follow(e, lookSettled, min(h.settling(e), h.cfg.Horizon))
}

// follow keeps a horizon near what is wanted, in steps of a quarter, so that its
// forecasts live to be judged.
func (h *Handover) follow(e *engine, look int, want time.Duration) {
	if now := e.pred.Horizon(look); want > now || want*5 < now*4 {
		e.pred.Aim(look, looked(min(want+want/10, max(h.cfg.Horizon, want))))
	}
}

// clamp keeps a bound between the largest admitted request and the pool.
func (e *engine) clamp(b Bytes) Bytes {
	return e.all(min(max(b, e.cfg.MinBound, e.largest), e.cfg.Pool))
}

// insured is the time that the forecast must cover: what few handovers exceed,
// up to four deadlines. A release slower than that is answered by the owed
// policy, not by keeping more memory from training for ever.
func (h *Handover) insured() time.Duration {
	return min(max(h.tail.high(), time.Millisecond), 4*h.cfg.AckWithin)
}

// settling is how long a bound of the engine must have been too large before
// the excess is lent. Both terms ask that memory stays lent for longer than it
// takes to move it twice: sixteen mean handovers, so that moving it costs training
// at most an eighth of that time (a cost is a mean; the tail is what insured is
// for); and two mean gaps between arrivals, so that it was not wanted by the last
// two of them. The horizon caps it: over a longer time the forecast itself
// decides. With prices it is what the excess costs training instead (see patience).
func (h *Handover) settling(e *engine) time.Duration {
	if h.cfg.Settle > 0 {
		return h.cfg.Settle
	}
	if e.cfg.Whole {
		return h.lull(e)
	}
	if h.priced() && e.ins.patience > 0 {
		return e.ins.patience
	}
	return min(max(h.worthMoving(), time.Duration(e.gaps()*float64(time.Second))), h.cfg.Horizon)
}

// worthMoving is sixteen mean handovers.
func (h *Handover) worthMoving() time.Duration { return 16 * max(h.tail.mean, time.Millisecond) }

// gaps is two mean gaps between the engine's arrivals in seconds, 0 where none have
// come.
func (e *engine) gaps() float64 {
	perSecond := e.pred.PerSecond()
	if perSecond <= 0 {
		return 0
	}
	return 2 / perSecond
}

// settling of a device is that of its slowest engine.
func (h *Handover) settlingOf(d *device) time.Duration {
	if h.cfg.Settle > 0 {
		return h.cfg.Settle
	}
	wait := min(h.worthMoving(), h.cfg.Horizon)
	for _, e := range d.engines {
		if !e.cfg.Whole { // whose lull is about its own pool
			wait = max(wait, h.settling(e))
		}
	}
	return wait
}
