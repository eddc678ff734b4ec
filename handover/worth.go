package handover

const (
	// mostRates bounds the points of a curve.
	mostRates = 64
	// mostSpeed bounds what a trainer may say of itself, and mostPrice what a config
	// may: nothing that is derived of them is infinite.
	mostSpeed, mostPrice = 1e9, 1e9
)

// worth is what memory is worth to a trainer: the corners of the least concave
// curve above its measured speeds, from no memory and no speed on. A measured
// speed is a lower bound of what that memory allows, and more memory can always
// be used like less, so dents are noise.
type worth []Rate

// newWorth is the upper hull (Andrew's monotone chain, 1979) of the points that
// make sense; nil without any.
func newWorth(curve []Rate) worth {
	hull := worth{{}}
	for _, p := range curve[:min(len(curve), mostRates)] {
		if p.Bytes <= hull[len(hull)-1].Bytes || !(p.SamplesPerSecond > 0 && p.SamplesPerSecond <= mostSpeed) {
			continue
		}
		for len(hull) > 1 && slope(hull[len(hull)-2], hull[len(hull)-1]) <= slope(hull[len(hull)-1], p) {
			hull = hull[:len(hull)-1]
		}
		hull = append(hull, p)
	}
	if len(hull) == 1 {
		return nil
	}
	return hull
}

func slope(a, b Rate) float64 {
	return (b.SamplesPerSecond - a.SamplesPerSecond) / float64(b.Bytes-a.Bytes)
}

// perByte is the samples a second that the last byte of a budget brings. Beyond
// the last point nothing was measured: a byte there is worth what the last ones
// were.
func (w worth) perByte(budget Bytes) float64 {
	for i := 1; i < len(w); i++ {
		if budget <= w[i].Bytes || i == len(w)-1 {
			return max(0, slope(w[i-1], w[i]))
		}
	}
	return 0
}

// at is the samples a second with a budget.
func (w worth) at(budget Bytes) float64 {
	for i := 1; i < len(w); i++ {
		if budget <= w[i].Bytes {
			return w[i-1].SamplesPerSecond + slope(w[i-1], w[i])*float64(budget-w[i-1].Bytes)
		}
	}
	if len(w) == 0 {
		return 0
	}
	return w[len(w)-1].SamplesPerSecond
}

// TrainingSpeed is the samples a second that the jobs make by their budgets while they
// have the devices' whole time.
func (h *Handover) TrainingSpeed() (perSecond float64) {
	for _, t := range h.trainers {
		if t.orderable() {
			perSecond += t.worth.at(t.budget)
		}
	}
	return perSecond
}

// onTrainerRated takes a trainer's curve.
func (h *Handover) onTrainerRated(e TrainerRated) {
	if t := h.trainer(e.Trainer); t != nil {
		t.worth = newWorth(e.Curve)
		t.wear.learn(e.WorkLost)
	}
}

// samplesPerByte is what a byte of the engine that is kept from training on each of
// its devices, by its scale there, costs: samples a second, by the trainers that would
// have it in the shares by which shrinks are taken from them. beside says that one is
// there, known that one has told its speed; those that have not count as the others do.
func (e *engine) samplesPerByte() (perByte float64, beside, known bool) {
	for _, d := range e.devices {
		var sum, weight float64
		for _, t := range d.trainers {
			if !t.orderable() {
				continue
			}
			beside = true
			if t.worth == nil {
				continue
			}
			share := float64(max(t.planned()-t.minBudget, 1))
			sum += share * t.worth.perByte(t.planned())
			weight += share
		}
		if weight > 0 {
			s := e.scaleOn(d)
			perByte, known = perByte+sum/weight*float64(s.part)/float64(s.whole), true
		}
	}
	return perByte, beside, known
}
