package sidecar

import (
	"context"
	"errors"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/endpoint"
	"github.com/lull-project/lull/engine"
)

// relayedNote is what the state says of a server on no device.
const relayedNote = "on no device: Lull relays and measures it and lends nothing"

const (
	// identifyEvery spaces the tries to learn what a relayed server is, and the looks
	// whether a reload has named another.
	identifyEvery = 2 * time.Second
	// identifyAgain is how long after an answer that was no LLM server's the next try
	// comes: a gateway may have given it while the server loads.
	identifyAgain = 30 * time.Second
)

// relayed is a server on no device, to whoever wants to know what it is.
type relayed struct {
	at    address
	known bool
	next  time.Time // of the next try
	said  string    // the problem that stands in the log
}

// address is what makes a relayed server another one.
type address struct {
	url, kind string
	tls       endpoint.TLS
}

// identifyRelayed learns what the servers are that are on no device, and whether
// they can be read: the core never meets them, and somebody who named the wrong
// address must read it somewhere. It ends when ctx does.
func (s *Sidecar) identifyRelayed(ctx context.Context) {
	servers := map[string]*relayed{}
	for _, e := range s.file.Engines {
		if len(e.Devices) == 0 {
			servers[e.Name] = &relayed{}
		}
	}
	tick := time.NewTicker(identifyEvery)
	defer tick.Stop()
	for len(servers) > 0 {
		file := s.reload.inForce()
		for _, e := range file.Engines {
			if r := servers[e.Name]; r != nil {
				s.identify(ctx, r, e, file.Proxy)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// identify asks a server unless what it is is known.
func (s *Sidecar) identify(ctx context.Context, r *relayed, e config.Engine, p config.Proxy) {
	if at := (address{e.URL, e.Kind, e.TLS}); r.at != at {
		*r = relayed{at: at}
		s.loop.post(ctx, input{do: func(l *loop) { l.view.forgetRelayed(e.Name) }})
	}
	if r.known || time.Now().Before(r.next) {
		return
	}
	can, err := readOnce(ctx, e, p)
	st := EngineState{Name: e.Name, Kind: can.Kind, Static: can.Static, Note: relayedNote}
	switch {
	case err == nil:
		r.known = true
		s.log.Info("upstream is known", "engine", e.Name, "kind", can.Kind)
	case ctx.Err() != nil || errors.Is(err, engine.ErrUnreachable) || errors.Is(err, engine.ErrNotReady):
		return // its health says so
	default:
		st.Kind, st.Problem = e.Kind, err.Error()
		r.next = time.Now().Add(identifyAgain)
		if st.Problem != r.said {
			r.said = st.Problem
			s.log.Warn("upstream cannot be read as an LLM server; requests are relayed all the same", "engine", e.Name, "err", err)
		}
	}
	s.loop.post(ctx, input{do: func(l *loop) { l.view.relayed(st) }})
}

// readOnce opens a server, reads it, and lets it go.
func readOnce(ctx context.Context, e config.Engine, p config.Proxy) (engine.Capabilities, error) {
	ec := engineConfig(e)
	if key, err := upstreamKey(p); err == nil {
		ec.Key = string(key)
	}
	found, err := engine.Open(ctx, ec)
	if err != nil {
		return engine.Capabilities{}, err
	}
	defer func() { _ = engine.Close(found) }()
	_, err = found.Observe(ctx)
	return found.Capabilities(), err
}
