package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lull-project/lull/endpoint"
)

const (
	// checkLimit ends a check of an upstream; a server that computes may take a
	// while for any answer.
	checkLimit = 2 * time.Second
	// missesForDown is how many checks in a row must fail, unless nobody listens.
	missesForDown = 3
)

// errSlow is the result of a check that met a listener and had no answer in time.
var errSlow = errors.New("no answer within " + checkLimit.String())

// Check asks every upstream once how it is (GET Upstream.Alive) and returns the
// names of those that went down and came up since it last said so, by it or by a
// request. One that is up and has answered a request since the last check is not
// asked. One goroutine at a time may call it, also on Proxies that share their
// connections. Any answer but a 5xx is a sign of life: not every server has that
// path. No answer in time counts only where another upstream can take over, and
// not while answers to requests come: a server in a long prefill answers nobody
// else.
func (p *Proxy) Check(ctx context.Context) (up, down []string) {
	alive, asked := make([]error, len(p.upstreams)), make([]bool, len(p.upstreams))
	var all sync.WaitGroup
	for i, u := range p.upstreams {
		if asked[i] = !u.health.heardOf(); asked[i] {
			all.Go(func() { alive[i] = p.ask(ctx, u) })
		}
	}
	all.Wait()
	if ctx.Err() != nil {
		return nil, nil
	}
	for i, u := range p.upstreams {
		h := u.health
		was := h.down.Load() // a request may have met it before the check
		if asked[i] {
			h.note(alive[i], p.HasChoice())
		}
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

// heardOf says that an upstream which is up has answered a request since the last
// check: it needs no other.
func (h *health) heardOf() bool {
	answers := h.answers.Load()
	some := answers != h.heard
	h.heard = answers
	return some && h.seen.Load() && !h.down.Load()
}

// note takes the result of a check; choice says that another upstream may serve.
func (h *health) note(err error, choice bool) {
	signs := h.signs.Load()
	busy := signs != h.noted
	h.noted = signs
	if err == nil {
		h.misses.Store(0)
		h.ill.Store(h.ill.Load() / 2)
		h.seen.Store(true)
		h.down.Store(false)
		return
	}
	text := err.Error()
	h.why.Store(&text)
	if errors.Is(err, errSlow) && (busy || !choice) {
		return
	}
	if h.misses.Add(1) >= missesForDown || endpoint.NobodyListens(err) {
		h.down.Store(true)
	}
}

// ask is one check. Where nobody could be dialled in time the error is not
// errSlow: no request can come through either.
func (p *Proxy) ask(ctx context.Context, u upstream) error {
	path := u.alive
	var met atomic.Bool
	ctx, stop := context.WithTimeoutCause(ctx, checkLimit, errSlow)
	defer stop()
	trace := &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { met.Store(true) },
		ConnectDone: func(_, _ string, err error) { // before TLS, which a blocked server does not speak either
			if err == nil {
				met.Store(true)
			}
		},
	}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodGet, u.url.JoinPath(path).String(), nil)
	if err != nil {
		return err
	}
	p.identify(req.Header)
	res, err := u.transport.RoundTrip(req)
	switch {
	case err == nil:
	case context.Cause(ctx) != errSlow:
		return asking{path, err}
	case met.Load():
		return asking{path, errSlow}
	default:
		return asking{path, errNoConnection}
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, 4<<10) // what is left closes the connection
	if res.StatusCode >= 500 {
		return asking{path, errStatus(res.StatusCode)}
	}
	return nil
}

// errNoConnection is the result of a check that could not be dialled in time.
var errNoConnection = errors.New("no connection within " + checkLimit.String())

// asking is what came of a check.
type asking struct {
	path string
	err  error
}

func (a asking) Error() string { return "GET " + a.path + ": " + a.err.Error() }

func (a asking) Unwrap() error { return a.err }
