package kvbudget

import "math"

const (
	// Levels are kept as log odds: from levelLow, in steps of levelStep, so that
	// the far tail is as fine as the middle.
	levelLow, levelStep, levelBins = -8.0, 0.25, 112
	// levelMemory is the forecasts that a level is judged by, in each regime.
	levelMemory = 1000.0
	// levelPrior is what the prior, that the law is right, is worth against the
	// forecasts of every regime, and levelPool what those are worth against the
	// regime's own.
	levelPrior, levelPool = 30.0, 200.0
	// levelTrust is the forecasts that must have been judged before the prior is
	// worth as little as levelPrior: at the start one surprise is no law.
	levelTrust = 300.0

	// A level that the histogram alone would not hold is moved, a little with each
	// outcome, until it covers (adaptive conformal inference, Gibbs and Candès,
	// 2021): tunedLevel itself, lower ones less, and none below the median.
	tunedLevel, shiftGain, shiftMost = 0.95, 0.02, 3.0

	loads   = 3
	regimes = loads * 2
	// golden spreads a probability integral transform over an atom evenly and
	// without randomness (the additive recurrence of the golden ratio).
	golden = 0.6180339887498949
)

// recalibration turns the level asked for into the level at which the law must
// be read, from how often the law was right: past outcomes' probability integral
// transforms, in each regime (load tercile, burst or not) and over all
// (Kuleshov, Fenner and Ermon, 2018; by groups: Vovk's Mondrian conformal
// prediction). Coverage then follows what happens and not what was assumed.
type recalibration struct {
	all  recent
	own  [regimes]recent
	turn float64
	// shift moves upper levels, in log odds, until they cover.
	shift [regimes]float64
}

func newRecalibration() recalibration {
	c := recalibration{all: newRecent(levelBins, 2*levelMemory)}
	for i := range c.own {
		c.own[i] = newRecent(levelBins, levelMemory)
	}
	return c
}

// learn takes an outcome by the law's probabilities of more than it, and of it
// or more; they differ where the law has an atom. bar is what exceed said for
// tunedLevel when the forecast was made.
func (c *recalibration) learn(regime int, more, orMore, bar float64) {
	c.turn += golden
	c.turn -= math.Floor(c.turn)
	p := more + c.turn*(orMore-more)
	bin := levelBin(p)
	c.all.add(bin)
	c.own[regime].add(bin)
	step := tunedLevel - 1
	if p < bar {
		step = tunedLevel
	}
	c.shift[regime] = min(max(c.shift[regime]+shiftGain*step, -shiftMost), shiftMost)
}

// blend is what a bin counts for in one regime: its own outcomes, and a few for
// those of all regimes and for the prior.
type blend struct {
	own, all                    []float64
	ownScale, allScale, ofPrior float64
}

func (c *recalibration) blend(regime int) blend {
	own, all := &c.own[regime], &c.all
	prior := max(levelPrior, levelTrust-all.count())
	pool := levelPool / (all.count() + prior)
	return blend{own: own.w, all: all.w, ownScale: 1 / own.unit, allScale: pool / all.unit, ofPrior: pool * prior}
}

func (m *blend) weight(b int) float64 {
	return m.own[b]*m.ownScale + m.all[b]*m.allScale + m.ofPrior*levelWidths[b]
}

// total is the sum of a regime's weights.
func (c *recalibration) total(regime int) float64 { return c.own[regime].count() + levelPool }

// share is the corrected probability of no more than what the law exceeds with
// probability p.
func (c *recalibration) share(regime int, p float64) float64 {
	if p >= 1 {
		return 0
	}
	if p <= 0 {
		return 1
	}
	place := (math.Log((1-p)/p) - levelLow) / levelStep
	bin := levelBin(p)
	m, cum := c.blend(regime), 0.0
	for b := range bin {
		cum += m.weight(b)
	}
	part := min(max(place-float64(bin), 0), 1)
	return (cum + part*m.weight(bin)) / c.total(regime)
}

// exceed is the probability of more at which the law is read for level q.
func (c *recalibration) exceed(regime int, q float64) float64 {
	m, cum, want := c.blend(regime), 0.0, q*c.total(regime)
	for b := range levelBins {
		w := m.weight(b)
		if cum+w >= want && w > 0 {
			y := levelLow + levelStep*(float64(b)+(want-cum)/w) + c.shift[regime]*max(0, (q-0.5)/(tunedLevel-0.5))
			return 1 / (1 + math.Exp(y))
		}
		cum += w
	}
	return 1 - level(levelBins-1)
}

// levelWidths is the prior's share of each bin: the law is right.
var levelWidths = func() (w [levelBins]float64) {
	for b := range w {
		w[b] = level(b+1) - level(b)
	}
	return w
}()

// level is the probability at a bin's lower edge.
func level(bin int) float64 {
	switch bin {
	case 0:
		return 0
	case levelBins:
		return 1
	}
	return 1 / (1 + math.Exp(-levelLow-levelStep*float64(bin)))
}

// levelBin is the bin of an outcome that the law exceeds with probability p.
func levelBin(p float64) int {
	if p <= 0 {
		return levelBins - 1
	}
	if p >= 1 {
		return 0
	}
	y := math.Log((1 - p) / p)
	return int(min(max((y-levelLow)/levelStep, 0), levelBins-1))
}
