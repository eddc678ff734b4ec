package slo

import "time"

// Counted is one window of one kind.
type Counted struct {
	Span
	// Covered is how much of the window has been observed: less than its length
	// until the Counter is as old.
	Covered time.Duration
	Tally
}

// Report is what was counted of one kind.
type Report struct {
	Kind    Kind
	Target  Target
	Total   Tally
	Windows [spans]Counted
}

// Reports are the kinds that have a sample, in the order of the kinds.
func (c *Counter) Reports(now time.Duration) []Report {
	var out []Report
	for k, s := range c.byKind {
		if s != nil {
			out = append(out, Report{Kind: Kind(k), Target: c.objective.Target(Kind(k)), Total: s.total, Windows: s.read(now)})
		}
	}
	return out
}

// Goodput counts requests that kept all of their promise (Within) and the others
// (Beyond); ok is false before the first. What a request must keep is TTFT, the
// mean of its gaps, end-to-end and success, each where promised; single gaps are
// TBT's to count.
func (c *Counter) Goodput(now time.Duration) (windows [spans]Counted, ok bool) {
	if c.good == nil {
		return windows, false
	}
	return c.good.read(now), true
}

// PerSecond is the window's goodput in requests per second.
func (c Counted) PerSecond() float64 {
	if c.Covered <= 0 {
		return 0
	}
	return float64(c.Within) / c.Covered.Seconds()
}

func (s *series) read(now time.Duration) (out [spans]Counted) {
	for i, span := range Spans() {
		out[i] = Counted{Span: span, Covered: s.windows[i].covered(now), Tally: s.windows[i].read(now)}
	}
	return out
}

// covered is the time from the beginning of the oldest slot that still counts,
// or from 0, until now.
func (w *window) covered(now time.Duration) time.Duration {
	oldest := int64(now/w.slot) - int64(len(w.ring)) + 1
	return now - time.Duration(max(oldest, 0))*w.slot
}
