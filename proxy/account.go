package proxy

// account closes the record and hands it over: once, whatever has happened.
func (x *exchange) account(end ending) {
	if x.closed {
		return
	}
	x.closed = true
	r := &x.rec
	r.Outcome, r.Err, r.End = end.outcome, end.err, x.p.cfg.Now()
	r.Overhead = x.overhead()
	if x.tap != nil {
		x.p.opaque.Add(int64(x.tap.opaque))
		fillCounts(r, &x.tap.tapCounts)
	}
	x.p.inFlight.Add(-1)
	if x.p.observer != nil {
		x.p.safely(func() { x.p.observer.Done(*r) })
	}
}

// fillCounts copies what the tap has counted.
func fillCounts(r *Record, c *tapCounts) {
	r.Contents, r.FirstContent, r.LastContent = c.contents, c.firstContent, c.lastContent
	r.Events, r.FirstEvent, r.LastEvent = c.events, c.firstEvent, c.lastEvent
	r.PromptTokens = c.prompt + c.beside + c.written
	r.CachedTokens = min(max(c.cached, c.beside), r.PromptTokens) // a server's word may be absurd
	r.Terminated = c.terminated
	switch {
	case c.usage:
		r.OutputTokens, r.TokenSource = c.output, TokensFromUsage
	case r.Stream && c.contents > 0:
		r.OutputTokens, r.TokenSource = c.contents, TokensFromEvents
	}
}
