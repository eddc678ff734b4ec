package handover

import (
	"maps"
	"time"

	"github.com/lull-project/lull/kvbudget"
)

// insureEvery is how often a reserve is priced: its inputs are averages over
// seconds and more.
const insureEvery = 100 * time.Millisecond

// Why a reserve is what it is; the words of ReserveState.Why.
const (
	whyConstant  = "constant"   // no prices: Config.Reserve
	whyPriced    = "priced"     // the least cost of both sides
	whyStatic    = "static"     // an engine whose pool does not move
	whyAlone     = "no_trainer" // nobody to keep it from
	whyUnrated   = "unrated"    // no trainer has told its speed: Config.Reserve
	whyOff       = "off"        // an interval without it
	whyUnasked   = "no_promise" // no request of late was promised a TTFT
	whyNoArrival = "no_arrival" // nobody comes
)

// insurance is an engine's priced reserve.
type insurance struct {
	base    Bytes // what the target covers without a reserve
	reserve Bytes
	why     string
	at      At // when it was last priced
	stale   bool
	// patience is how long the present excess is kept, 0 not priced.
	patience time.Duration

	exposure kvbudget.Exposure
	calm     kvbudget.Arriving // arrivals while no handover is under way
	busy     kvbudget.Arriving // and while one is
	owed     bool              // one is, since the last Step
	owing    float64           // share of the time with one under way, decayed
	rides    float64           // share of the requests then that it brings enough for
	book     book

	choice  Bytes // the reserve by the law; reserve is 0 where a course without one is followed
	courses courses
	upTo    Bytes // the bound that the last shrink was ordered for, while it is owed

	perByte                float64 // samples a second that a byte is worth to training
	toll                   kvbudget.Toll
	premium, loss, bare    float64 // a second, in the currency; bare is the loss without a reserve
	toTraining, toRequests float64 // what a byte more is worth to either, a second
}

// derived says that the reserve was worked out from prices.
func (in *insurance) derived() bool { return in.why != "" && in.why != whyUnrated }

// priced says that the reserve follows from prices.
func (h *Handover) priced() bool { return h.prices.Sample > 0 && h.prices.Miss > 0 }

// onPriced takes prices over; every reserve is priced anew in this Step.
func (h *Handover) onPriced(p Priced) {
	h.closeBooks()
	for _, e := range h.engines {
		e.ins.courses.forget()
	}
	p.Tiers = maps.Clone(p.Tiers)
	for _, price := range []*float64{&p.Sample, &p.Miss, &p.Prefill} {
		*price = sanePrice(*price)
	}
	h.prices = p
}

// sanePrice is 0 for what is no price.
func sanePrice(v float64) float64 {
	if !(v > 0) {
		return 0
	}
	return min(v, mostPrice)
}

// onReserveOff begins or ends an interval without priced reserves.
func (h *Handover) onReserveOff(e ReserveOff) {
	h.closeBooks()
	h.off = e.Off
}

// closeBooks counts the time until now under the prices and the reserves of
// before, and has the reserves priced anew.
func (h *Handover) closeBooks() {
	for _, e := range h.engines {
		if h.priced() {
			h.accrue(e)
		}
		e.ins.stale, e.ins.book.at = true, h.now
	}
}

// missPrice is the price of a miss of a tier.
func (h *Handover) missPrice(tier string) float64 {
	if p, ok := h.prices.Tiers[tier]; ok {
		return sanePrice(p)
	}
	return h.prices.Miss
}

// cover sets the engine's targets with a priced reserve. demand is what the bound
// must cover without one, expected the mean demand after the settling time. The
// reserve lies on top of what is covered anyway: the least bound and the rest of
// a quantum insure too, and cost nothing.
func (h *Handover) cover(e *engine, demand, expected Bytes) {
	in := &e.ins
	h.accrue(e)
	in.base = e.clamp(demand.CeilTo(h.cfg.Quantum))
	if in.stale || h.now-in.at >= insureEvery {
		h.insure(e)
	}
	if in.why == whyUnrated {
		in.reserve = e.clamp((demand + h.cfg.Reserve).CeilTo(h.cfg.Quantum)) - in.base
		in.choice = in.reserve
	}
	e.target = e.clamp(in.base + in.reserve)
	h.rehearse(e)
	if x := in.followed(); x != nil {
		in.patience, e.lend = h.waits(e, x, e.bound-e.target), max(e.target, h.kept(e))
		return
	}
	in.patience = 0
	e.lend = max(e.target, e.clamp((expected + in.reserve).CeilTo(h.cfg.Quantum)), h.kept(e))
}

// lot is what a shrink for the engine takes beyond its target.
func (in *insurance) lot() Bytes {
	if x := in.followed(); x != nil {
		return x.lot
	}
	return 0
}

// noteOwed keeps, for the books, whether a handover is under way until the next
// Step.
func (h *Handover) noteOwed() {
	for _, e := range h.engines {
		e.ins.owed = h.owed(e)
	}
}

// insure prices the engine's reserve.
func (h *Handover) insure(e *engine) {
	in := &e.ins
	in.at, in.stale = h.now, false
	h.noteOverdue()
	perByte, beside, known := e.samplesPerByte()
	perByte *= h.share.until(h.now) // a byte brings nothing while training stands still
	in.perByte = perByte
	in.toll = in.exposure.Toll(h.times, h.cfg.Horizon, h.missPrice)
	c := kvbudget.Cover{
		PerByte: perByte * h.prices.Sample, Miss: h.prices.Miss, Step: h.cfg.Quantum, Most: e.cfg.Pool - in.base,
	}
	h.phases(e, c.Phases[:2], calmWindow, 1-in.owing, in.toll.Price, &in.calm)
	h.phases(e, c.Phases[2:], h.times.Around(h.cfg.Horizon), in.owing, in.rides*in.toll.Met+(1-in.rides)*in.toll.Price, &in.busy)
	switch {
	case h.off:
		in.choice, in.why = 0, whyOff
	case !beside:
		in.choice, in.why = 0, whyAlone
	case !known:
		in.why = whyUnrated // cover keeps to Config.Reserve
	default:
		in.choice, in.why = c.Choose(in.choice), whyPriced
		if in.calm.Mean == 0 {
			in.why = whyNoArrival
		} else if !in.exposure.Promised() {
			in.why = whyUnasked
		}
	}
	in.reserve = in.choice
	if x := in.followed(); x != nil && x.bare {
		in.reserve = 0
	}
	h.pricePrefixes(e)
	in.premium, in.loss, in.bare = c.Premium(in.reserve), c.Loss(in.reserve), c.Loss(0)
	in.toTraining, in.toRequests = c.PerByte, c.Saving(in.reserve)
}

// calmWindow is a window in which hardly more than one request arrives.
const calmWindow = time.Millisecond

// phases are the requests that come in a window and the room that they find:
// what the bound covers without a reserve, less what live requests are given of
// it, and without or with what those give back until the slack of a request is
// over that comes in the middle.
func (h *Handover) phases(e *engine, into []kvbudget.Phase, window time.Duration, share, toll float64, law *kvbudget.Arriving) {
	e.pred.Arriving(h.now, window, law)
	room := e.ins.base - e.pred.Need() - e.foreign()
	none, some := e.pred.Leaving(window/2 + e.ins.toll.Slack)
	into[0] = kvbudget.Phase{Share: share * none, Toll: toll, Arriving: law, Room: room}
	into[1] = kvbudget.Phase{Share: share * (1 - none), Toll: toll, Arriving: law, Room: room + some}
}
