package handover

import (
	"math"
	"time"
)

const (
	// prefixBins divide the pool by the share that cached prefixes take of it.
	prefixBins = 16
	// prefixMemory is the time constant with which hits are forgotten, lookupMemory
	// that of the rate of look-ups.
	prefixMemory, lookupMemory = 10 * time.Minute, time.Minute
	// leastLookups is how many looked-up tokens make a bin count.
	leastLookups = 2000
)

// prefixes is what an engine's cached prefixes bring: the share of the looked-up
// tokens that were found, by how many bytes were cached then. Its memory is constant.
type prefixes struct {
	heard                  bool
	since                  At // of the first reading
	at                     At
	queried, hit           uint64 // counters as last read
	cached                 Bytes  // as last read
	bins                   [prefixBins + 1]prefixBin
	looked, found, seconds float64 // tokens of late and the time that they took, decayed
	points                 [prefixBins + 1]Rate
	keep                   Bytes   // of cached, what is worth more than to training
	perByte                float64 // currency a second that the last byte kept saves
}

type prefixBin struct{ queried, hit, bytes float64 }

// see takes an engine's counters of looked-up and found tokens. Those that went back
// are another process's.
func (p *prefixes) see(at At, pool, cached Bytes, queried, hit uint64) {
	took := (at - p.at).Seconds()
	q, n := float64(queried-p.queried), float64(hit-p.hit)
	known := p.heard && queried >= p.queried && hit >= p.hit && took > 0
	if known {
		fade := math.Exp(-took / prefixMemory.Seconds())
		for i := range p.bins {
			b := &p.bins[i]
			b.queried, b.hit, b.bytes = b.queried*fade, b.hit*fade, b.bytes*fade
		}
		// The bytes of before: those that the look-ups could find.
		b := &p.bins[min(max(int(p.cached*prefixBins/max(pool, 1)), 0), prefixBins)]
		b.queried, b.hit, b.bytes = b.queried+q, b.hit+min(n, q), b.bytes+q*float64(p.cached)
		fade = math.Exp(-took / lookupMemory.Seconds())
		p.looked, p.found, p.seconds = p.looked*fade+q, p.found*fade+min(n, q), p.seconds*fade+took
	}
	if !p.heard || queried < p.queried || hit < p.hit { // a server that began anew
		p.since = at
	}
	p.heard, p.at, p.cached, p.queried, p.hit = true, at, cached, queried, hit
}

// lookups count tokens of prompts that were looked up and found.
type lookups struct{ queried, hit uint64 }

// add takes one prompt by usage.
func (l *lookups) add(prompt, cached int) {
	if prompt > 0 {
		l.queried += uint64(prompt)
		l.hit += uint64(min(max(cached, 0), prompt))
	}
}

// seePrefixes takes what an engine's cache has found: by its own counters, or else by
// usage, once that has told of anything found. An engine that does not say which of
// its evictable bytes are prefixes has no others.
func (h *Handover) seePrefixes(e *engine, s EngineSeen) {
	switch {
	case s.PrefixQueries > 0:
		if p := &e.prefixes; p.heard && s.PrefixHits > p.hit {
			e.pred.Found(s.PrefixHits - p.hit)
		}
		e.prefixes.see(h.now, e.cfg.Pool, s.Cached, s.PrefixQueries, s.PrefixHits)
	case e.usage.hit > 0:
		cached := s.Cached
		if cached == 0 {
			cached = s.Evictable
		}
		e.prefixes.see(h.now, e.cfg.Pool, cached, e.usage.queried, e.usage.hit)
	}
}

// curve is the share found by the bytes cached, as the least concave curve above
// what was measured (see worth): what a cache finds rises ever more slowly with its
// size. Between nothing and the least size that was seen it is a line.
func (p *prefixes) curve(into []Rate) worth {
	points := into[:0]
	for _, b := range p.bins {
		if b.queried >= leastLookups {
			points = append(points, Rate{Bytes: Bytes(b.bytes / b.queried), SamplesPerSecond: b.hit / b.queried})
		}
	}
	return newWorth(points)
}

// perSecond are tokens of late a second, of those that were looked up or found.
func (p *prefixes) perSecond(tokens float64) float64 { return tokens / max(p.seconds, 1e-3) }

// price decides how much of the cache is worth keeping: every further byte whose
// hits save more, at perHit a token found, than it is worth to training. Beyond the
// largest cache that was seen a byte is worth what the last ones were. In the first
// minute, while too little is known, all is kept.
func (p *prefixes) price(now At, pool Bytes, perHit, training float64) {
	p.keep, p.perByte = 0, 0
	hull := p.curve(p.points[:])
	if perHit <= 0 {
		return
	}
	if len(hull) < 2 {
		if p.heard && now-p.since < lookupMemory {
			p.keep = pool
		}
		return
	}
	for i := 1; i < len(hull); i++ {
		worth := slope(hull[i-1], hull[i]) * p.perSecond(p.looked) * perHit
		if worth <= 0 || worth < training {
			if i == 1 {
				p.perByte = max(worth, 0)
			}
			return
		}
		p.keep, p.perByte = hull[i].Bytes, worth
	}
	p.keep = pool
}

// PrefillSeen is what a token of a prompt takes the server, as its requests showed,
// 0 unknown.
type PrefillSeen struct {
	At       At
	PerToken time.Duration
}

func (e PrefillSeen) when() At { return e.At }

// kept is the bound that the engine keeps for its cached prefixes: what live requests
// use of it, and what is cached and worth keeping.
func (h *Handover) kept(e *engine) Bytes {
	p := &e.prefixes
	keep := min(p.keep, p.cached)
	if keep <= 0 || !h.priced() || h.prices.Prefill <= 0 || e.down || !e.seen {
		return 0
	}
	return min(e.clamp((e.needed + keep).CeilTo(h.cfg.Quantum)), max(e.bound, e.target))
}

// pricePrefixes is done with the reserve, every insureEvery.
func (h *Handover) pricePrefixes(e *engine) {
	perHit := h.prices.Prefill * h.prefill.Seconds()
	if !h.priced() {
		perHit = 0
	}
	e.prefixes.price(h.now, e.cfg.Pool, perHit, e.ins.perByte*h.prices.Sample)
}
