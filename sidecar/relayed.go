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

// identifyEvery spaces the tries to learn what a relayed server is, and the looks
// whether a reload has named another.
const identifyEvery = 2 * time.Second

// address is what makes a relayed server another one.
type address struct {
	url, kind string
	tls       endpoint.TLS
}

// identifyRelayed learns, once each, what the servers are that are on no device:
// the core never meets them, and somebody who named the wrong address must read it
// somewhere. It ends when ctx does.
func (s *Sidecar) identifyRelayed(ctx context.Context) {
	known := map[string]address{}
	tick := time.NewTicker(identifyEvery)
	defer tick.Stop()
	for {
		for _, e := range s.reload.inForce().Engines {
			at := address{e.URL, e.Kind, e.TLS}
			if len(e.Devices) == 0 && known[e.Name] != at && s.identify(ctx, e) {
				known[e.Name] = at
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// identify asks one server; false says that it could not be asked yet.
func (s *Sidecar) identify(ctx context.Context, e config.Engine) bool {
	ec := engine.DefaultConfig()
	ec.Name, ec.Kind, ec.URL, ec.TLS = e.Name, e.Kind, e.URL, e.TLS
	ec.Page, ec.Segment, ec.MetricsURL = e.Page, e.Segment, e.MetricsURL
	st := EngineState{Name: e.Name, Kind: e.Kind, Note: relayedNote}
	found, err := engine.Open(ec)
	switch {
	case err == nil:
		can := found.Capabilities()
		st.Kind, st.Static = can.Kind, can.Static
		_ = engine.Close(found)
		s.log.Info("upstream is known", "engine", e.Name, "kind", can.Kind)
	case errors.Is(err, engine.ErrNoServer):
		st.Problem = err.Error()
		s.log.Warn("upstream is no LLM server that Lull knows; requests are relayed all the same", "engine", e.Name, "err", err)
	default:
		return false
	}
	s.loop.post(ctx, input{do: func(l *loop) { l.view.relayed(st) }})
	return true
}
