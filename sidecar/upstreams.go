package sidecar

import (
	"context"
	"time"
)

// checkEvery is how often upstreams are asked how they are, where there is a
// choice of them.
const checkEvery = time.Second

// checkUpstreams keeps what is known of the upstreams fresh, by the config in
// force, until ctx ends.
func (s *Sidecar) checkUpstreams(ctx context.Context) {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		up, down := s.reload.serving().Check(ctx)
		for _, name := range down {
			s.log.Warn("upstream is down; requests go to the next one that is not", "engine", name)
		}
		for _, name := range up {
			s.log.Info("upstream is up again", "engine", name)
		}
	}
}
