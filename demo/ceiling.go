package demo

import "time"

// ceilings is what a trainer may hold over time, by its own promises: an order
// to shrink counts from the moment of its ack, a grant from the moment it was
// sent (the trainer cannot have used it before).
type ceilings []ceilingStep

// ceilingStep is a ceiling in force from At until the next step.
type ceilingStep struct {
	At    time.Time
	Bytes int64
	Epoch uint64
}

// buildCeilings follows the sidecar's orders and the trainer's acks, in the
// order of the events.
func buildCeilings(events []sidecarEvent) ceilings {
	var (
		steps   ceilings
		pending = map[uint64]int64{} // shrinks sent and not acked: bytes by epoch
	)
	for _, e := range events {
		switch e.Kind {
		case "order":
			if !e.Shrink {
				steps = append(steps, ceilingStep{At: e.at(), Bytes: e.Bytes, Epoch: e.Epoch})
				clear(pending) // a grant ends every promise before it
				continue
			}
			pending[e.Epoch] = e.Bytes
		case "ack":
			bytes, ok := pending[e.Epoch]
			if !ok || e.How == "superseded" {
				continue
			}
			delete(pending, e.Epoch)
			// A trainer that says it holds more than it was told to (suspended, say)
			// has promised what it said.
			steps = append(steps, ceilingStep{At: e.at(), Bytes: max(bytes, e.Bytes), Epoch: e.Epoch})
		}
	}
	return steps
}

// highest is the highest ceiling in force at any moment of [from, to]: a
// reading that took that long may stem from any of them. ok is false before the
// first order.
func (c ceilings) highest(from, to time.Time) (step ceilingStep, ok bool) {
	for _, s := range c {
		switch {
		case s.At.After(to):
			return step, ok
		case !s.At.After(from):
			step, ok = s, true // in force at from: it replaces all before
		case !ok || s.Bytes > step.Bytes:
			step, ok = s, true
		}
	}
	return step, ok
}

// mean is the time-weighted mean ceiling over [from, to]; time before the first
// order counts as 0.
func (c ceilings) mean(from, to time.Time) float64 {
	if !to.After(from) {
		return 0
	}
	var sum float64
	for i, s := range c {
		begin, end := s.At, to
		if i+1 < len(c) && c[i+1].At.Before(to) {
			end = c[i+1].At
		}
		if begin.Before(from) {
			begin = from
		}
		if end.After(begin) {
			sum += float64(s.Bytes) * end.Sub(begin).Seconds()
		}
	}
	return sum / to.Sub(from).Seconds()
}
