package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// checkLimit ends a check of an upstream; a server that computes may take a
	// while for any answer.
	checkLimit = 2 * time.Second
	// missesForDown is how many checks in a row must fail, unless nobody listens.
	missesForDown = 3
)

// health is what is known of one upstream. Configs that name the same URL share
// it.
type health struct {
	down   atomic.Bool
	seen   atomic.Bool            // a check has succeeded once
	why    atomic.Pointer[string] // of the last check that failed
	misses int                    // of checks in a row; the checker's own
	told   bool                   // Check has said that it is down; the checker's own
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

// pick chooses the upstream of a request, as an index: the first that is not
// down. When all are, the first: its error is the answer.
func (p *Proxy) pick() int {
	if !p.cfg.Failover {
		return 0
	}
	for i := range p.upstreams {
		if !p.upstreams[i].health.down.Load() {
			return i
		}
	}
	return 0
}

// elsewhere moves a request to another upstream when its own could not be
// dialled: no byte of it has gone anywhere. The Gate has spoken for the first; it
// is not asked again.
func (x *exchange) elsewhere(ctx context.Context, err error) bool {
	if !x.p.failed(ctx, x.up, err) || !x.body.replayable() {
		return false
	}
	next := x.p.upstreams[x.p.pick()]
	if next.health.down.Load() {
		return false
	}
	x.up, x.rec.Engine = next, next.name
	x.p.reroutes.Add(1)
	return true
}

// failed notes that an upstream could not be dialled. False says that this is not
// what err means, or that there is no choice of upstreams.
func (p *Proxy) failed(ctx context.Context, u upstream, err error) bool {
	var op *net.OpError
	if ctx.Err() != nil || !errors.As(err, &op) || op.Op != "dial" {
		return false
	}
	text := op.Error()
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
			out[i].Problem = "GET /health: " + *why
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

// Check asks every upstream once how it is (GET /health) and returns the names of
// those that went down and came up since it last said so, by it or by a request.
// One goroutine at a time may call it, also on Proxies that share their
// connections. Any answer but a 5xx is a sign of life: not every server has that
// path.
func (p *Proxy) Check(ctx context.Context) (up, down []string) {
	alive := make([]error, len(p.upstreams))
	var all sync.WaitGroup
	for i, u := range p.upstreams {
		all.Go(func() { alive[i] = p.ask(ctx, u) })
	}
	all.Wait()
	if ctx.Err() != nil {
		return nil, nil
	}
	for i, u := range p.upstreams {
		h := u.health
		was := h.down.Load() // a request may have met it before the check
		h.note(alive[i])
		now := h.down.Load()
		if (was || now) && !h.told {
			h.told, down = true, append(down, u.name)
		}
		if h.told && !now {
			h.told, up = false, append(up, u.name)
		}
	}
	return up, down
}

// note takes the result of a check.
func (h *health) note(err error) {
	if err == nil {
		h.misses = 0
		h.seen.Store(true)
		h.down.Store(false)
		return
	}
	text := err.Error()
	h.why.Store(&text)
	if h.misses++; h.misses >= missesForDown || errors.Is(err, syscall.ECONNREFUSED) {
		h.down.Store(true)
	}
}

func (p *Proxy) ask(ctx context.Context, u upstream) error {
	ctx, stop := context.WithTimeout(ctx, checkLimit)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.url.JoinPath("health").String(), nil)
	if err != nil {
		return err
	}
	p.identify(req.Header)
	res, err := p.transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, 4<<10) // what is left closes the connection
	if res.StatusCode >= 500 {
		return errStatus(res.StatusCode)
	}
	return nil
}
