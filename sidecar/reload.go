package sidecar

import (
	"errors"
	"fmt"
	"sync"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/proxy"
)

// reloader is what a reload changes and where it comes from.
type reloader struct {
	asked chan struct{} // one wish is enough
	path  string        // "" where there is no file to watch
	load  func() (config.File, error)

	mu     sync.Mutex
	file   config.File // in force
	front  *front      // nil before the data listener serves
	first  *proxy.Proxy
	now    *proxy.Proxy // that of the config in force
	closed bool
}

func newReloader(file config.File) *reloader {
	return &reloader{asked: make(chan struct{}, 1), file: file}
}

// open lets reloads exchange what the front serves.
func (r *reloader) open(f *front, first *proxy.Proxy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.front, r.first, r.now = f, first, first
}

// serving is the data path by the config in force.
func (r *reloader) serving() *proxy.Proxy {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// inForce is the file by which requests are served now.
func (r *reloader) inForce() config.File {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.file
}

// close ends all reloading and returns the file in force.
func (r *reloader) close() config.File {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return r.file
}

// errNotServing is returned by Reload before the listeners serve and once the
// drain has begun.
var errNotServing = errors.New("reload: the sidecar is not serving; the config stays as it is")

// Reload takes over from a valid file what can change while requests run, and
// says which keys these were and which wait for a restart. Requests under way go
// on as they were promised and configured. On an error nothing has changed.
func (s *Sidecar) Reload(next config.File) (changed, restart []string, err error) {
	r := s.reload
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.front == nil {
		return nil, nil, errNotServing
	}
	merged, changed, restart := r.file.Reload(next)
	if err := merged.Validate(); err != nil {
		return nil, nil, fmt.Errorf("%w (with what needs a restart as it is: %v)", err, restart)
	}
	cfg, err := proxyConfig(merged)
	if err != nil {
		return nil, nil, err
	}
	path, err := r.first.Reconfigured(cfg)
	if err != nil {
		return nil, nil, err
	}
	s.gate.score.declare(merged.SLO)
	r.front.set(newHeaders(merged.SLO, merged.Auth.Keys, s.metrics).read(path))
	s.loop.post(s.loop.ctx, input{do: func(l *loop) {
		l.compute.set(merged.SLO.Promises(), merged.Interference)
		l.pricing.set(merged.Policy.Prices, merged.SLO.Location())
		l.tellPrices()
	}})
	r.file, r.now = merged, path
	return changed, restart, nil
}
