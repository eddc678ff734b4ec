package proxy

import (
	"fmt"
	"time"

	"github.com/lull-project/lull/endpoint"
)

// Upstream is one LLM server.
type Upstream struct {
	// Name is the engine's name in requests, records and metrics.
	Name string
	// URL is an address as endpoint.Parse reads it, with an optional path in front of
	// every request's path.
	URL string
	// TLS is for an https URL whose server the system's CAs do not vouch for, or that
	// wants to know who calls.
	TLS endpoint.TLS
	// Alive is the path below URL that Check asks for; it should cost the server
	// nothing. Default /v1/models, which every OpenAI-compatible server lists.
	Alive string
}

func (u Upstream) alivePath() string {
	if u.Alive == "" {
		return "/v1/models"
	}
	return u.Alive
}

// Config is all that the data path is told.
type Config struct {
	// Upstreams are the servers; the first one serves every request, or with Failover
	// the first that is not down. Default engine at http://127.0.0.1:8000, where `vllm serve` listens.
	Upstreams []Upstream
	// Failover lets the next upstream serve while one before it is down: it could not
	// be dialled, or Check found it so. A request whose upstream cannot be dialled
	// goes to the next one at once. Default false: all of them must serve the same
	// models, which nobody has said.
	Failover bool
	// Balance is which of the upstreams that are not down serves a request, with
	// Failover: BalanceFirst (or "") or BalanceLeastLoad. Default the first. The other spreads
	// the load over servers that are alike, and with it the prompts that each has cached.
	Balance string
	// IdleLimit ends an answer without a byte from the upstream for so long, one
	// whose client takes no byte for so long, and an upload that stands still for so
	// long (at most a quarter longer). Default 5m; shorter cuts slow but
	// healthy streams, longer keeps dead ones open. There is no total limit.
	IdleLimit time.Duration
	// FirstByteLimit ends the wait for the upstream's headers with 504. Default 0,
	// no limit: a long answer without streaming has no byte until its end, and a
	// caller that gives up is noticed anyhow.
	FirstByteLimit time.Duration
	// ConnectTimeout limits dialling the upstream. Default 5s; shorter fails on a
	// busy accept queue, longer delays the 502 of a dead host.
	ConnectTimeout time.Duration
	// KeepAlive is how long an unused upstream connection is kept. Default 4s:
	// below the 5s after which uvicorn closes it, so that requests rarely meet a
	// connection that is just being closed.
	KeepAlive time.Duration
	// ScanBytes is the longest body that is read before it is forwarded. Default
	// 64 MiB; a longer one is forwarded as a stream and judged by its beginning.
	ScanBytes int64
	// BodyMemory is what the bodies that are read whole may take together. Default
	// 1 GiB; a body for which there is no room is forwarded as a stream and judged
	// by its beginning, like one above ScanBytes.
	BodyMemory int64
	// InjectUsage asks the upstream for the usage of a stream whose client said
	// nothing of it, and strips the event with the answer. Default false: every
	// byte passes as it is, and tokens are then counted as events. An upstream that
	// does not know stream_options may refuse such requests.
	InjectUsage bool
	// MaxBodyBytes refuses longer bodies on interpreted paths with 413. Default 0:
	// the upstream's own limit is the only one.
	MaxBodyBytes int64

	// Keys are the SHA-256 of the keys of Lull's own clients. With any, a request
	// needs one of them, as bearer token, X-Api-Key or Api-Key (an OPTIONS request
	// needs none: a browser's preflight cannot carry one), and no such field reaches
	// the upstream. Default none: every request passes with what it carries.
	Keys []KeyHash
	// UpstreamKey is sent to the upstream as bearer token in place of whatever key
	// the client sent. Default none.
	UpstreamKey Secret
	// TrustForwarded passes Forwarded and X-Forwarded-* on. Default false: a client
	// may claim anything in them, so they are dropped; true is for a proxy in front
	// that sets them itself.
	TrustForwarded bool

	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// IDPrefix begins every request's ID; empty means a random one per Proxy.
	IDPrefix string
}

// DefaultConfig has every default.
func DefaultConfig() Config {
	return Config{
		Upstreams:      []Upstream{{Name: "engine", URL: "http://127.0.0.1:8000"}},
		IdleLimit:      5 * time.Minute,
		ConnectTimeout: 5 * time.Second,
		KeepAlive:      4 * time.Second,
		ScanBytes:      64 << 20,
		BodyMemory:     1 << 30,
	}
}

// Validate names the key, the value and the rule of the first thing wrong.
func (c Config) Validate() error {
	if len(c.Upstreams) == 0 {
		return fmt.Errorf("proxy.upstreams: got none, want at least one name and url")
	}
	seen := map[string]bool{}
	for i, u := range c.Upstreams {
		if err := u.validate(fmt.Sprintf("proxy.upstreams[%d]", i)); err != nil {
			return err
		}
		if seen[u.Name] {
			return fmt.Errorf("proxy.upstreams[%d].name: got %q twice, want each name once", i, u.Name)
		}
		seen[u.Name] = true
	}
	if err := ValidBalance(c.Balance, c.Failover); err != nil {
		return err
	}
	switch {
	case c.IdleLimit <= 0:
		return fmt.Errorf("proxy.idle_timeout: got %v, want more than 0", c.IdleLimit)
	case c.FirstByteLimit < 0:
		return fmt.Errorf("proxy.first_byte_limit: got %v, want 0 (none) or more", c.FirstByteLimit)
	case c.ConnectTimeout <= 0:
		return fmt.Errorf("proxy.connect_timeout: got %v, want more than 0", c.ConnectTimeout)
	case c.KeepAlive <= 0:
		return fmt.Errorf("proxy.keep_alive: got %v, want more than 0", c.KeepAlive)
	case c.ScanBytes <= 0:
		return fmt.Errorf("proxy.scan_bytes: got %d, want more than 0", c.ScanBytes)
	case c.BodyMemory < 0:
		return fmt.Errorf("proxy.body_memory: got %d, want 0 or more", c.BodyMemory)
	case c.MaxBodyBytes < 0:
		return fmt.Errorf("proxy.max_body_bytes: got %d, want 0 (none) or more", c.MaxBodyBytes)
	case !c.UpstreamKey.fits():
		return fmt.Errorf("proxy.upstream_key: got a value that no header can carry, want printable ASCII without blanks, at most %d bytes", mostKey)
	}
	return nil
}

func (u Upstream) validate(key string) error {
	if u.Name == "" {
		return fmt.Errorf("%s.name: got %q, want a name", key, u.Name)
	}
	at, err := endpoint.Parse(u.URL)
	if err != nil {
		return fmt.Errorf("%s.url: %w", key, err)
	}
	if err := u.TLS.Validate(at); err != nil {
		return fmt.Errorf("%s.%w", key, err)
	}
	return nil
}
