package proxy

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/lull-project/lull/endpoint"
)

// health is what is known of one upstream. Configs that name the same URL share
// it.
type health struct {
	down    atomic.Bool
	open    atomic.Int64           // requests that are being served by it
	seen    atomic.Bool            // it has answered once
	why     atomic.Pointer[string] // of the last failure: what was tried and what came of it
	misses  atomic.Int32           // of checks in a row
	ill     atomic.Int64           // answers of 5xx to requests, since one below 500 or by half since a check
	answers atomic.Uint64          // below 500, to requests
	signs   atomic.Uint64          // likewise, and pieces of such answers

	// The checker's own.
	heard, noted uint64 // answers and signs at the last check
	told         bool   // Check has said that it is down
}

// mostIll bounds what answers of 5xx count for in least_load: an upstream that fails
// at once has few open requests and would draw all. It is as many open requests
// more; a check that it stands lets it try again with half.
const mostIll = 64

// answered notes the header of an answer to a request. Below 500 it says that the
// server serves, whatever its checks say: it may be too busy for them.
func (h *health) answered(status int) {
	if status >= 500 {
		if h.ill.Load() < mostIll {
			h.ill.Add(1)
		}
		return
	}
	if h.ill.Load() != 0 {
		h.ill.Store(0)
	}
	h.answers.Add(1)
	h.signs.Add(1)
	// Mostly they are so: a load leaves the cache line to all cores.
	if !h.seen.Load() {
		h.seen.Store(true)
	}
	if h.misses.Load() != 0 {
		h.misses.Store(0)
	}
	if h.down.Load() {
		h.down.Store(false)
	}
}

// goesOn notes a piece of an answer. It clears nothing: a server that has closed
// its port may end its streams.
func (h *health) goesOn(status int) {
	if status < 500 {
		h.signs.Add(1)
	}
}

// Health is what is known of one upstream.
type Health struct {
	Name string
	// Up says that it has answered and is not down.
	Up bool
	// Problem says why not, "" where it is up.
	Problem string
}

// healths are those of all upstreams that any config has named.
type healths struct {
	mu    sync.Mutex
	byURL map[string]*health
}

func (h *healths) of(url string) *health {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byURL == nil {
		h.byURL = map[string]*health{}
	}
	if h.byURL[url] == nil {
		h.byURL[url] = &health{}
	}
	return h.byURL[url]
}

// elsewhere moves a request to another upstream when its own could not be
// dialled: no byte of it has gone anywhere. The Gate has spoken for the first; it
// is not asked again.
func (x *exchange) elsewhere(ctx context.Context, err error) bool {
	next, ok := x.p.nextAfter(ctx, x.up, err)
	if !ok || !x.body.replayable() {
		return false
	}
	x.moveTo(next)
	return true
}

// moveTo gives a request to another upstream than that of its arrival.
func (x *exchange) moveTo(next upstream) {
	x.up.give()
	next.take()
	x.up, x.rec.Engine = next, next.name
	x.p.reroutes.Add(1)
	if m, ok := x.p.gate.(Mover); ok {
		x.p.safely(func() { m.Moved(x.rec.ID, next.name) })
	}
}

// beside is the upstream for a request that the Gate refused for u: another that
// serves, by the same choice as for any request; false where there is none.
func (p *Proxy) beside(u upstream) (upstream, bool) {
	i := p.pickBut(u.health)
	if i < 0 || !p.upstreams[i].health.seen.Load() {
		return upstream{}, false
	}
	return p.upstreams[i], true
}

// nextAfter notes what an attempt's error says of its upstream, and is the one to
// try instead; false where there is none, or where the first may have had a byte.
func (p *Proxy) nextAfter(ctx context.Context, u upstream, err error) (upstream, bool) {
	if !p.failed(ctx, u, err) {
		return upstream{}, false
	}
	if i := p.pickBut(u.health); i >= 0 {
		return p.upstreams[i], true
	}
	// All are marked down: one may be back, and this request would fail in any case.
	for i := range p.upstreams {
		if p.upstreams[i].health == u.health && len(p.upstreams) > 1 {
			return p.upstreams[(i+1)%len(p.upstreams)], true
		}
	}
	return upstream{}, false
}

// failed notes that an upstream could not be dialled. False says that this is not
// what err means, or that there is no choice of upstreams. A handshake that is late
// is a server that computes, as it is to a check: it is not down, and the request
// goes elsewhere all the same.
func (p *Proxy) failed(ctx context.Context, u upstream, err error) bool {
	var shake *endpoint.HandshakeError
	if ctx.Err() != nil || !endpoint.NoRequestSent(err) {
		return false
	}
	if errors.As(err, &shake) && shake.Late() {
		return p.cfg.Failover
	}
	text := "a request could not be sent: " + err.Error()
	u.health.why.Store(&text)
	u.health.down.Store(true)
	return p.cfg.Failover
}

// Health is what is known of every upstream, in the config's order.
func (p *Proxy) Health() []Health {
	out := make([]Health, len(p.upstreams))
	for i, u := range p.upstreams {
		out[i] = Health{Name: u.name, Up: u.health.seen.Load() && !u.health.down.Load()}
		if out[i].Up {
			continue
		}
		out[i].Problem = "it has not been asked yet how it is"
		if why := u.health.why.Load(); why != nil {
			out[i].Problem = *why
		}
	}
	return out
}

// HasChoice says that requests may go to more than one upstream.
func (p *Proxy) HasChoice() bool { return p.cfg.Failover && len(p.upstreams) > 1 }

// Serving is the name of the upstream that a request goes to which comes now, ""
// where none is up.
func (p *Proxy) Serving() string {
	u := p.upstreams[p.pick()]
	if !u.health.seen.Load() || u.health.down.Load() {
		return ""
	}
	return u.name
}
