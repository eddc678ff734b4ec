package proxy

import (
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/endpoint"
)

func TestDefaultConfigIsValid(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
}

func TestConfigErrorsNameKeyValueAndRule(t *testing.T) {
	up := func(name, url string) func(*Config) {
		return func(c *Config) { c.Upstreams = []Upstream{{Name: name, URL: url}} }
	}
	for want, breakIt := range map[string]func(*Config){
		"proxy.upstreams: got none, want at least one name and url":     func(c *Config) { c.Upstreams = nil },
		`proxy.upstreams[0].name: got "", want a name`:                  up("", "http://x"),
		`proxy.upstreams[0].url: got "ftp://x", want ` + endpoint.Forms: up("a", "ftp://x"),
		`proxy.upstreams[0].tls: got settings for "http://x", want them for an https address only`: func(c *Config) {
			c.Upstreams = []Upstream{{Name: "a", URL: "http://x", TLS: endpoint.TLS{CA: "ca.pem"}}}
		},
		`proxy.upstreams[1].name: got "a" twice, want each name once`: func(c *Config) { c.Upstreams = []Upstream{{Name: "a", URL: "http://x"}, {Name: "a", URL: "http://y"}} },
		"proxy.idle_timeout: got 0s, want more than 0":                func(c *Config) { c.IdleLimit = 0 },
		"proxy.first_byte_limit: got -1ns, want 0 (none) or more":     func(c *Config) { c.FirstByteLimit = -1 },
		"proxy.connect_timeout: got 0s, want more than 0":             func(c *Config) { c.ConnectTimeout = 0 },
		"proxy.keep_alive: got -1ns, want more than 0":                func(c *Config) { c.KeepAlive = -1 },
		"proxy.body_memory: got -1, want 0 or more":                   func(c *Config) { c.BodyMemory = -1 },
		"proxy.scan_bytes: got 0, want more than 0":                   func(c *Config) { c.ScanBytes = 0 },
		"proxy.max_body_bytes: got -1, want 0 (none) or more":         func(c *Config) { c.MaxBodyBytes = -1 },
	} {
		c := DefaultConfig()
		breakIt(&c)
		if err := c.Validate(); err == nil || err.Error() != want {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
}

func TestDefaultsPutNoTotalLimitOnAnAnswer(t *testing.T) {
	c := DefaultConfig()
	if c.IdleLimit < 5*time.Minute || c.FirstByteLimit != 0 || c.ScanBytes < 64<<20 || c.MaxBodyBytes != 0 {
		t.Errorf("got %+v, want generous idle limits, no limit on prefill and large bodies", c)
	}
	if c.KeepAlive >= 5*time.Second {
		t.Errorf("keep-alive: got %v, want less than uvicorn's 5s", c.KeepAlive)
	}
	if s := Server(nil); s.WriteTimeout != 0 || s.ReadTimeout != 0 || s.ReadHeaderTimeout == 0 {
		t.Errorf("server: got %+v, want no limit but on the header of a request", s)
	}
	if tr := New(c, nil, nil).upstreams[0].transport; tr.ResponseHeaderTimeout != 0 || !tr.DisableCompression || tr.Proxy != nil || tr.MaxConnsPerHost != 0 {
		t.Errorf("transport: got %+v, want no limits, no compression and no proxy of its own", tr)
	}
}

func TestNewPanicsOnABadConfigAndNamesTheKey(t *testing.T) {
	defer func() {
		if v, _ := recover().(string); !strings.HasPrefix(v, "proxy: new: proxy.upstreams: ") {
			t.Errorf("panic: got %q, want it to name the key", v)
		}
	}()
	New(Config{}, nil, nil)
}

func TestDialectPaths(t *testing.T) {
	for path, want := range map[string]dialect{
		"/v1/chat/completions": chat{}, "/v1/completions": completions{}, "/v1/responses": responses{}, "/v1/messages": messages{},
		"/v2/models/m/generate": triton{}, "/v2/models/m/versions/2/infer": triton{},
		"/v2/models/m/versions/2": nil, "/v2/models//infer": nil, "/v2/models/m/x/infer": nil, "/v2/models/m": nil,
		"/api/chat": ollama{}, "/api/generate": ollama{}, "/completion": llamacpp{}, "/infill": llamacpp{}, "/generate": sglang{},
		"/v1/chat/completions/": nil, "/api/tags": nil, "/v1/generate": nil, "/V1/completions": nil, "/": nil,
	} {
		if got := dialectOf(path); got != want {
			t.Errorf("%s: got %T, want %T", path, got, want)
		}
	}
}
