package proxy

import (
	"net/http"
	"sync"
	"time"

	"github.com/lull-project/lull/endpoint"
	"github.com/lull-project/lull/proxy/arrival"
)

// link is what upstreams must have in common to share connections' settings.
type link struct {
	socket string
	tls    endpoint.TLS
}

// links are the transports of all configs in use.
type links struct {
	connect, keep time.Duration

	mu   sync.Mutex
	open map[link]*http.Transport
}

// of gives each upstream, all of them valid, its transport. What no upstream needs
// any more is forgotten; requests under way on it go on.
func (l *links) of(ups []Upstream) []*http.Transport {
	l.mu.Lock()
	defer l.mu.Unlock()
	out, needed := make([]*http.Transport, len(ups)), map[link]*http.Transport{}
	for i, u := range ups {
		at, _ := endpoint.Parse(u.URL)
		key := link{at.Socket(), u.TLS}
		if needed[key] == nil {
			needed[key] = l.open[key]
		}
		if needed[key] == nil {
			needed[key] = l.dialing(at, u.TLS)
		}
		out[i] = needed[key]
	}
	for key, t := range l.open {
		if needed[key] == nil {
			t.CloseIdleConnections()
		}
	}
	l.open = needed
	return out
}

// dialing makes a transport. No proxy from the environment, no compression of its
// own, HTTP/1.1, no limit on connections: admission is the Gate's.
func (l *links) dialing(at endpoint.Endpoint, files endpoint.TLS) *http.Transport {
	t := &http.Transport{
		DisableCompression:    true,
		MaxIdleConnsPerHost:   1024,
		IdleConnTimeout:       l.keep,
		ReadBufferSize:        16 << 10,
		WriteBufferSize:       16 << 10,
		ExpectContinueTimeout: time.Second,
	}
	d := endpoint.NewDialer(at, files, l.connect).Wrapping(arrival.Stamped)
	d.Use(t)
	hearOut(t)
	return t
}

func (l *links) closeIdle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.open {
		t.CloseIdleConnections()
	}
}
