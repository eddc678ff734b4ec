package kvbudget

// recent is a histogram that forgets: each value counts less than the one after
// it by 1 - 1/memory.
type recent struct {
	w      []float64
	unit   float64 // weight of the next value
	total  float64
	growth float64
}

func newRecent(bins int, memory float64) recent {
	return recent{w: make([]float64, bins), unit: 1, growth: memory / (memory - 1)}
}

func (r *recent) add(bin int) {
	r.w[bin] += r.unit
	r.total += r.unit
	r.unit *= r.growth
	if r.unit > 1e9 {
		for b := range r.w {
			r.w[b] /= r.unit
		}
		r.total /= r.unit
		r.unit = 1
	}
}

// count is how many values, by weight, the histogram stands for.
func (r *recent) count() float64 { return r.total / r.unit }

// share is the share of values in a bin; 0 before the first.
func (r *recent) share(bin int) float64 {
	if r.total == 0 {
		return 0
	}
	return r.w[bin] / r.total
}

// below is the share of values in lower bins, and half of those in this one.
func (r *recent) below(bin int) float64 {
	if r.total == 0 {
		return 0.5
	}
	s := r.w[bin] / 2
	for _, w := range r.w[:bin] {
		s += w
	}
	return s / r.total
}
