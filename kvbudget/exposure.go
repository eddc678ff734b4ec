package kvbudget

import "time"

const (
	// exposureMemory is how many of the last requests count, by weight.
	exposureMemory = 500.0
	// mostTiers bounds the tiers that are told apart; requests of further ones count
	// with those of the first.
	mostTiers = 16
)

// Exposure is how long the requests of late could have waited, by tier: a
// decayed histogram of their slack. Requests that were promised nothing count
// too, as ones that nobody can miss. Its memory is constant.
type Exposure struct {
	tiers []tierSlack
	total float64
	unit  float64
}

type tierSlack struct {
	name string
	n    float64
	w    [lengthBucket]float64
}

// Add takes a request as it arrives.
func (x *Exposure) Add(tier string, slack time.Duration, promised bool) {
	if x.unit == 0 {
		x.unit = 1
	}
	x.total += x.unit
	if promised {
		s := x.tier(tier)
		s.w[durationBin(slack)] += x.unit
		s.n += x.unit
	}
	if x.unit *= exposureMemory / (exposureMemory - 1); x.unit > 1e9 {
		x.rescale()
	}
}

func (x *Exposure) tier(name string) *tierSlack {
	for i := range x.tiers {
		if x.tiers[i].name == name {
			return &x.tiers[i]
		}
	}
	if len(x.tiers) == mostTiers {
		return &x.tiers[0]
	}
	x.tiers = append(x.tiers, tierSlack{name: name})
	return &x.tiers[len(x.tiers)-1]
}

func (x *Exposure) rescale() {
	for i := range x.tiers {
		t := &x.tiers[i]
		t.n /= x.unit
		for b := range t.w {
			t.w[b] /= x.unit
		}
	}
	x.total /= x.unit
	x.unit = 1
}

// Toll is what it costs on average that a request finds no room.
type Toll struct {
	// Price is the price of a miss times the probability of one where a handover
	// begins with the request, Met where one is under way already.
	Price, Met float64
	// Late is the share of requests whose slack the handover would outlast.
	Late float64
	// Slack is the mean slack of the requests that it makes late.
	Slack time.Duration
}

// Toll weighs the slack against the times that handovers take, and each tier's
// misses by their price.
func (x *Exposure) Toll(t *Times, horizon time.Duration, price func(tier string) float64) (toll Toll) {
	if x.total == 0 {
		return toll
	}
	var late, met [lengthBucket]float64
	t.late(&late)
	t.lateMet(horizon, &met)
	lateSum, slackSum := 0.0, 0.0
	for i := range x.tiers {
		s, sum, metSum := &x.tiers[i], 0.0, 0.0
		for b, w := range s.w {
			sum += w * late[b]
			metSum += w * met[b]
			slackSum += w * late[b] * edge(b)
		}
		lateSum += sum
		toll.Price += sum / x.total * price(s.name)
		toll.Met += metSum / x.total * price(s.name)
	}
	if lateSum > 0 {
		toll.Slack = time.Duration(slackSum / lateSum * float64(timeUnit))
	}
	toll.Late = lateSum / x.total
	return toll
}

// Promised says that some request of late was promised something.
func (x *Exposure) Promised() bool {
	for i := range x.tiers {
		if x.tiers[i].n > 1e-6*x.total {
			return true
		}
	}
	return false
}
