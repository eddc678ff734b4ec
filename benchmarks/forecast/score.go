package forecast

// Group is which decisions a score is over.
type group int

const (
	overall group = iota
	light
	middle
	heavy
	afterBurst
	groups
)

var groupNames = [groups]string{"overall", "light", "middle", "heavy", "after bursts"}

// tally adds up one method's scores in one group.
type tally struct {
	n        int
	pinball  float64
	covered  quantiles
	distance float64 // of the 95 % quantile above the present need
}

// card is one method's scores for one horizon.
type card [groups]tally

// add scores one decision in its groups.
func (c *card) add(m method, q quantiles, need, most float64, load int, burst bool) {
	var hit quantiles
	for i := range q {
		hit[i] = covered(m, q[i], most, levels[i])
	}
	c[overall].add(q, hit, need, most)
	c[light+group(load)].add(q, hit, need, most)
	if burst {
		c[afterBurst].add(q, hit, need, most)
	}
}

func (t *tally) add(q, hit quantiles, need, most float64) {
	t.n++
	t.pinball += pinball(q[p95], most, levels[p95])
	t.distance += q[p95] - need
	for i := range hit {
		t.covered[i] += hit[i]
	}
}

// pinball is the loss of a quantile: level for each byte short, 1 - level for
// each byte too many (Koenker and Bassett, 1978).
func pinball(q, came, level float64) float64 {
	if came > q {
		return level * (came - q)
	}
	return (1 - level) * (q - came)
}

// covered is 1 where the quantile is above what came and 0 where it is below.
// Where they are equal, the randomised probability integral transform of what
// came lies evenly in [P(less), P(at most)], and the share of that below the
// level counts (Czado, Gneiting and Held, 2009, for counts): its expectation is
// taken, so nothing is drawn.
func covered(m method, q, came, level float64) float64 {
	switch {
	case q > came:
		return 1
	case q < came:
		return 0
	}
	below, upTo, ok := m.at(came)
	if !ok || upTo <= below {
		return 1
	}
	return min(max((level-below)/(upTo-below), 0), 1)
}
