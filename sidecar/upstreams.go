package sidecar

import (
	"context"
	"time"

	"github.com/lull-project/lull/proxy"
	"github.com/lull-project/lull/telemetry"
)

const (
	// checkEvery is how often upstreams are asked how they are, where there is a
	// choice of them or where none serves.
	checkEvery = time.Second
	// settledTicks is how many of them pass where a lone upstream is up: nothing
	// depends on it but /readyz, and servers log each question.
	settledTicks = 2
)

// checkUpstreams keeps what is known of the upstreams fresh, by the config in
// force, until ctx ends.
func (s *Sidecar) checkUpstreams(ctx context.Context) {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		if p := s.reload.serving(); n%settledTicks == 0 || p.HasChoice() || p.Serving() == "" {
			s.checkOnce(ctx, p)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// checkOnce asks all upstreams and says what has changed.
func (s *Sidecar) checkOnce(ctx context.Context, p *proxy.Proxy) {
	up, down := p.Check(ctx)
	next := p.Serving()
	for _, name := range down {
		if next == "" {
			s.log.Warn("upstream is down and no other serves; requests get its error", "engine", name)
			continue
		}
		s.log.Warn("upstream is down; requests go to those that are not", "engine", name, "serving", next)
	}
	for _, name := range up {
		s.log.Info("upstream is up again", "engine", name, "serving", next)
	}
}

// Ready says whether a request that comes now can be served: its upstream answers,
// with failover any of them, and no drain has begun. Problems are all that is
// wrong; some stand in no request's way.
func (s *Sidecar) Ready() (ready bool, problems []string) {
	if s.closing.Load() {
		return false, []string{"draining"}
	}
	problems = s.loop.view.read().Problems
	p := s.reload.serving()
	for _, h := range p.Health() {
		if h.Problem != "" {
			problems = append(problems, "upstream "+h.Name+": "+h.Problem)
		}
	}
	return p.Serving() != "", problems
}

// serving is the same for metrics.
func (s *Sidecar) serving() telemetry.Serving {
	p := s.reload.serving()
	if p == nil {
		return telemetry.Serving{} // not listening yet
	}
	out := telemetry.Serving{Ready: !s.closing.Load() && p.Serving() != "", Up: map[string]bool{}}
	for _, h := range p.Health() {
		out.Up[h.Name] = h.Up
	}
	return out
}
