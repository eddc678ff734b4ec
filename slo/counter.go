package slo

import "time"

// Ended is one request that ended, as far as its promise goes.
type Ended struct {
	// OK says that the caller got a whole, good answer.
	OK bool
	// Content says that a first chunk with content came, and TTFT when.
	Content bool
	TTFT    time.Duration
	// PromptTokens is what a TTFT limit that grows with the prompt goes by.
	PromptTokens int
	// Stream says that the answer was, or was to be, a stream: only there are TBT
	// and TPOT promised.
	Stream bool
	// Generation is first to last content, OutputTokens the tokens of both ends.
	Generation   time.Duration
	OutputTokens int
	// E2E is request fully read to the end of the answer.
	E2E time.Duration
}

// Counter counts the samples of one objective. Times are offsets on one clock
// of the caller's that does not go back; it begins at 0 when the Counter is made.
type Counter struct {
	objective Objective
	byKind    [kinds]*series
	good      *series // requests, by whether they kept all of their promise
}

// NewCounter counts for an objective.
func NewCounter(o Objective) *Counter { return &Counter{objective: o} }

// Objective is what the Counter counts for.
func (c *Counter) Objective() Objective { return c.objective }

// Gap counts one gap between two chunks with content, and tells the word on it;
// ok is false without a promise.
func (c *Counter) Gap(now time.Duration, p Promise, gap time.Duration) (t Tally, ok bool) {
	if p.TBT <= 0 {
		return Tally{}, false
	}
	t = judge(gap <= p.TBT)
	c.count(TBT, now, t)
	return t, true
}

// Verdict is the word on each kind of sample of one request; a kind without a
// promise or without a sample has the zero Tally.
type Verdict [kinds]Tally

// Request counts a request that ended and tells the words on it. Requests that
// were promised nothing (a caller that left, a request that was at fault itself)
// are the caller's to leave out.
func (c *Counter) Request(now time.Duration, p Promise, e Ended) Verdict {
	v := p.verdict(e)
	promised, kept := false, e.OK
	for k, t := range v {
		if t.N() == 0 {
			continue
		}
		c.count(Kind(k), now, t)
		promised, kept = true, kept && t.Within == 1
	}
	if promised {
		if c.good == nil {
			c.good = newSeries()
		}
		c.good.add(now, judge(kept))
	}
	return v
}

// verdict judges everything but gaps.
func (p Promise) verdict(e Ended) (v Verdict) {
	if limit := p.TTFT.For(e.PromptTokens); limit > 0 {
		v[TTFT] = Tally{Missing: 1}
		if e.Content {
			v[TTFT] = judge(e.TTFT <= limit)
		}
	}
	switch {
	case p.TPOT <= 0 || !e.Stream:
	case !e.Content:
		v[TPOT] = Tally{Missing: 1}
	case e.OutputTokens >= 2: // one token has no gap
		v[TPOT] = judge(withinMean(e.Generation, e.OutputTokens-1, p.TPOT))
	}
	if p.E2E > 0 {
		v[E2E] = Tally{Missing: 1}
		if e.OK {
			v[E2E] = judge(e.E2E <= p.E2E)
		}
	}
	if p.Success {
		v[Success] = judge(e.OK)
	}
	return v
}

// withinMean tells whether whole/parts <= limit without rounding the mean down.
func withinMean(whole time.Duration, parts int, limit time.Duration) bool {
	mean := whole / time.Duration(parts)
	return mean < limit || mean == limit && whole%time.Duration(parts) == 0
}

func (c *Counter) count(k Kind, now time.Duration, t Tally) {
	if c.byKind[k] == nil {
		c.byKind[k] = newSeries()
	}
	c.byKind[k].add(now, t)
}
