package kvbudget

const (
	// leastSaving is what a step of reserve must save at least, in misses a second
	// at the full price: one in eleven days. Where memory is worth nothing to
	// training a reserve would else grow without end.
	leastSaving = 1e-6
	// nearEnough is how far above the least cost a chosen reserve may be, and
	// worthMoving how far above it the present one is left alone: prices and laws
	// are no better known, and each move is a handover.
	nearEnough, worthMoving = 0.05, 0.10
	// mostLooks bounds the reserves that are tried for one choice.
	mostLooks = 128
)

// Cover is one decision on a reserve: how many bytes beyond what the forecast
// covers are kept from training. Keeping r bytes costs
//
//	premium(r) = PerByte · r                                      what training loses, a second
//	loss(r)    = Σ Share · Toll · Short(Room + r) / window        what inference loses, a second
//
// and the reserve is the r with the least sum: the newsvendor's order quantity
// (Arrow, Harris and Marschak, Optimal Inventory Policy, Econometrica 19, 1951),
// with docs/RESERVE.md for its critical ratio. Prices are in any currency.
type Cover struct {
	// Phases are when requests arrive: while no handover is under way, and while one
	// is, which holds back what came since it began; each without and with others
	// that leave in time.
	Phases [4]Phase
	// PerByte is the price of a byte kept from training, a second.
	PerByte float64
	// Miss is the price of a miss.
	Miss float64
	// Reserves are whole Steps, at most Most.
	Step, Most Bytes
}

// Phase is a share of the time.
type Phase struct {
	// Share is of the time, Toll what it costs that a request finds no room.
	Share, Toll float64
	// Arriving is the law of what comes before it finds new room, Room the bytes that
	// it finds with no reserve.
	Arriving *Arriving
	Room     Bytes
}

// Premium is what a reserve costs a second.
func (c *Cover) Premium(r Bytes) float64 { return c.PerByte * float64(r) }

// Loss is what misses cost a second with that reserve.
func (c *Cover) Loss(r Bytes) float64 {
	sum := 0.0
	for _, p := range c.Phases {
		if p.Share > 0 && p.Arriving.Window > 0 {
			sum += p.Share * p.Toll * p.Arriving.Short(p.Room+r) / p.Arriving.Window.Seconds()
		}
	}
	return sum
}

// Saving is what one more step of reserve saves inference, a byte and second:
// the other side of PerByte. At a reserve between 0 and Most the two meet.
func (c *Cover) Saving(r Bytes) float64 {
	return max(0, c.Loss(r)-c.Loss(r+c.Step)) / float64(c.Step)
}

// Choose is the reserve with the least cost, to within a twentieth; it is the
// present one where that costs hardly more.
func (c *Cover) Choose(present Bytes) Bytes {
	n := int(c.Most / c.Step)
	if n <= 0 {
		return 0
	}
	perStep := max(c.PerByte*float64(c.Step), leastSaving*c.Miss)
	loss := func(i int) float64 { return c.Loss(Bytes(i) * c.Step) }
	best, cost := least(n, perStep, loss)
	now := min(int(present/c.Step), n)
	if now != best && perStep*float64(now)+loss(now) <= cost*(1+worthMoving) {
		best = now
	}
	return Bytes(best) * c.Step
}

// span is the whole numbers between two that were tried.
type span struct {
	from, to int
	loss     float64 // at to, which none between is below
}

// least finds the i of 0 to n with the least perStep·i + loss(i), to within
// nearEnough, for a loss that never rises: by branch and bound (Land and Doig,
// 1960). Nothing between two numbers costs less than the premium of the first
// and the loss at the last; halves of which that is no better than what was found
// are left out. The loss need not be convex.
func least(n int, perStep float64, loss func(int) float64) (best int, cost float64) {
	cost = loss(0)
	if most := cost / perStep; most < float64(n) {
		n = int(most) // beyond it the premium alone is more than the loss without
	}
	if n == 0 {
		return 0, cost
	}
	try := func(i int) float64 {
		l := loss(i)
		if c := perStep*float64(i) + l; c < cost {
			best, cost = i, c
		}
		return l
	}
	var open [64]span
	open[0] = span{0, n, try(n)}
	for depth, looks := 1, 0; depth > 0 && looks < mostLooks; {
		depth--
		s := open[depth]
		if s.to-s.from < 2 || perStep*float64(s.from+1)+s.loss >= cost*(1-nearEnough) {
			continue
		}
		mid := s.from + (s.to-s.from)/2
		looks++
		open[depth] = span{mid, s.to, s.loss}
		open[depth+1] = span{s.from, mid, try(mid)}
		depth += 2
	}
	return best, cost
}
