package proxy

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lull-project/lull/endpoint"
)

// Proxy is Lull's data path by one config; see the package's documentation. It
// never changes: a request is served by the config that it met on arrival, and
// another config is another Proxy (Reconfigured).
type Proxy struct {
	*shared
	cfg       Config
	upstreams []upstream
	passes    []*httputil.ReverseProxy // one an upstream
	away      *turned                  // answers every request; nil while it serves
}

// shared is what all configs of a data path have in common.
type shared struct {
	gate     Gate
	observer Observer
	events   EventObserver // observer, if it is one

	links   links
	prefix  string
	buffers sync.Pool
	bodies  bodyMemory
	// staleWithin is staleWindow; tests on machines of any speed have a longer one.
	staleWithin time.Duration

	serial   atomic.Uint64
	inFlight atomic.Int64
	passing  atomic.Int64
	faults   atomic.Int64
	opaque   atomic.Int64
	replays  atomic.Int64
	reroutes atomic.Int64
	healths  healths
}

type upstream struct {
	name      string
	at        endpoint.Endpoint
	url       *url.URL // its base
	alive     string   // what Check asks for
	health    *health
	transport *http.Transport // others may share it
}

// Stats are counts since New, but for the two that say how many there are now.
type Stats struct {
	// InFlight and Passing are the interpreted and the other requests being served
	// at this moment.
	InFlight, Passing int64
	// Faults are panics of the tap, the scanner, the Gate or the Observer that were
	// caught; each cost a metric or a decision, never a stream.
	Faults int64
	// Opaque are events or answers that were no JSON Lull could read.
	Opaque int64
	// Replays are requests sent again because the upstream had closed an idle
	// connection just as they were sent on it.
	Replays int64
	// Reroutes are requests that went to another upstream because theirs could not be
	// dialled, or because the Gate had no room for them there.
	Reroutes int64
}

// relayBuffer is the size of one read of an answer, in bytes. Reads return what
// has come, so it delays nothing; it bounds what one request holds.
const relayBuffer = 32 << 10

// New makes the data path. gate may be nil: all requests go at once. observer
// may be nil. It panics on a config that Validate refuses.
func New(cfg Config, gate Gate, observer Observer) *Proxy {
	if err := cfg.Validate(); err != nil {
		panic("proxy: new: " + err.Error())
	}
	s := &shared{gate: gate, observer: observer, prefix: cfg.IDPrefix, staleWithin: staleWindow}
	s.events, _ = observer.(EventObserver)
	if s.prefix == "" {
		var b [4]byte
		_, _ = rand.Read(b[:]) // never returns an error
		s.prefix = hex.EncodeToString(b[:])
	}
	s.buffers.New = func() any { return new([relayBuffer]byte) }
	s.links.connect, s.links.keep = cfg.ConnectTimeout, cfg.KeepAlive
	return s.by(cfg)
}

// by is the data path by a config, which is valid.
func (s *shared) by(cfg Config) *Proxy {
	p := &Proxy{shared: s, cfg: cfg}
	if p.cfg.Now == nil {
		p.cfg.Now = time.Now
	}
	s.bodies.limit.Store(cfg.BodyMemory)
	transports := s.links.of(cfg.Upstreams)
	for i, u := range cfg.Upstreams {
		at, _ := endpoint.Parse(u.URL) // Validate has parsed it
		up := upstream{u.Name, at, at.URL(), u.alivePath(), s.healths.of(at.String()), transports[i]}
		p.upstreams, p.passes = append(p.upstreams, up), append(p.passes, p.newPass(up))
	}
	return p
}

// Reconfigured is p by another config. Both share connections, counts and the
// memory for bodies; what p serves goes on by its own config. The timeouts of
// connections and the IDs' prefix stay as New had them. The error is Validate's,
// and changes nothing.
func (p *Proxy) Reconfigured(cfg Config) (*Proxy, error) {
	cfg.ConnectTimeout, cfg.KeepAlive, cfg.IDPrefix = p.cfg.ConnectTimeout, p.cfg.KeepAlive, p.cfg.IDPrefix
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return p.shared.by(cfg), nil
}

// ServeHTTP serves one request.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer arrivals(r).Done()
	var d dialect
	if r.Method == http.MethodPost {
		d = dialectOf(r.URL.Path)
	}
	if t := p.turnsAway(r); t != nil {
		p.turnAway(w, r, d, t)
		return
	}
	if d != nil {
		p.interpret(w, r, d)
		return
	}
	p.pass(w, r)
}

// Close closes the idle connections to the upstreams. Requests that are being
// served go on; the HTTP server ends them.
func (p *Proxy) Close() { p.links.closeIdle() }

// InFlight is the number of interpreted requests being served at this moment.
func (p *Proxy) InFlight() int64 { return p.inFlight.Load() }

// Stats returns the proxy's own counts.
func (p *Proxy) Stats() Stats {
	return Stats{
		InFlight: p.inFlight.Load(), Passing: p.passing.Load(), Faults: p.faults.Load(),
		Opaque: p.opaque.Load(), Replays: p.replays.Load(), Reroutes: p.reroutes.Load(),
	}
}

func (p *Proxy) newID() string {
	return p.prefix + "-" + strconv.FormatUint(p.serial.Add(1), 10)
}

// safely runs what may cost a metric only.
func (p *Proxy) safely(f func()) {
	defer func() {
		if v := recover(); v != nil {
			p.faults.Add(1)
		}
	}()
	f()
}

// admit asks the Gate; one that panics lets the request go.
func (p *Proxy) admit(ctx context.Context, r Request) (v Verdict) {
	if p.gate == nil {
		return Verdict{Forward: true, Outcome: OutcomeForwarded}
	}
	v = Verdict{Forward: true, Outcome: OutcomeForwardedUnconfirmed}
	p.safely(func() { v = p.gate.Admit(ctx, r) })
	if v.Outcome == "" {
		v.Outcome = OutcomeForwarded
		if !v.Forward {
			v.Outcome = OutcomeRejectedDeadline
		}
	}
	return v
}

// String names the proxy's engines and their addresses.
func (p *Proxy) String() string {
	s := "proxy to"
	for _, u := range p.upstreams {
		s += fmt.Sprintf(" %s=%s", u.name, u.at)
	}
	return s
}
