package sidecar

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/proxy"
)

// front is what the data listener serves: a handler that is exchanged while
// requests run. Each goes on with the one that it met, and pays one atomic load.
type front struct{ now atomic.Pointer[http.Handler] }

func (f *front) set(h http.Handler) { f.now.Store(&h) }

// ServeHTTP makes front an http.Handler.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) { (*f.now.Load()).ServeHTTP(w, r) }

// proxyConfig is what a file says to the data path. It reads the upstream's key
// from where the file says it is, and whether the files of TLS can be read.
func proxyConfig(f config.File) (proxy.Config, error) {
	cfg := proxy.DefaultConfig()
	cfg.IdleLimit, cfg.BodyMemory = f.Proxy.IdleTimeout, int64(f.Proxy.BodyMemory)
	cfg.InjectUsage, cfg.TrustForwarded = f.Proxy.Usage == "inject", f.Proxy.TrustForwarded
	cfg.Failover, cfg.Balance = f.Proxy.Failover, f.Proxy.Balance
	cfg.Upstreams = nil
	for _, e := range f.Engines {
		cfg.Upstreams = append(cfg.Upstreams, proxy.Upstream{Name: e.Name, URL: e.URL, TLS: e.TLS, Alive: engine.AlivePath(e.Kind)})
	}
	for _, k := range f.Auth.Keys {
		cfg.Keys = append(cfg.Keys, k.Sum())
	}
	var err error
	if cfg.UpstreamKey, err = upstreamKey(f.Proxy); err != nil {
		return cfg, err
	}
	if err := cfg.Validate(); err != nil {
		return cfg, err
	}
	return cfg, ReadableTLS(f)
}

// upstreamKey reads the key that the LLM server asks for. No error has it in its
// text.
func upstreamKey(p config.Proxy) (proxy.Secret, error) {
	key, from, text := "proxy.upstream_key_env", p.UpstreamKeyEnv, os.Getenv(p.UpstreamKeyEnv)
	switch {
	case p.UpstreamKeyFile != "":
		b, err := os.ReadFile(p.UpstreamKeyFile)
		if err != nil {
			return "", fmt.Errorf("proxy.upstream_key_file: %w", err)
		}
		key, from, text = "proxy.upstream_key_file", p.UpstreamKeyFile, string(b)
	case p.UpstreamKeyEnv == "":
		return "", nil
	}
	text = strings.TrimSpace(text)
	if text == "" {
		return "", fmt.Errorf("%s: got %q, which has nothing in it, want the upstream's API key there", key, from)
	}
	return proxy.Secret(text), nil
}
