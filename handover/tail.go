package handover

import "time"

// tail learns how long handovers take, from decision to the device's
// confirmation: a smoothed mean and mean deviation, and their sum 1:4 as the
// value that few exceed (the retransmission timer of RFC 6298, for the same
// question: how long until an answer is overdue).
type tail struct{ mean, dev time.Duration }

// newTail starts from the deadline: an order is expected to take what it is
// given, until some were measured.
func newTail(prior time.Duration) tail { return tail{mean: prior, dev: prior / 4} }

func (t *tail) learn(d time.Duration) {
	diff := d - t.mean
	t.mean += diff / 8
	if diff < 0 {
		diff = -diff
	}
	t.dev += (diff - t.dev) / 4
}

// high is the time that few handovers exceed.
func (t *tail) high() time.Duration { return t.mean + 4*t.dev }
