package engine

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lull-project/lull/endpoint"
	"github.com/lull-project/lull/size"
)

// The kinds of server, as configs spell them.
const (
	KindAuto      = "auto"
	KindEmulator  = "emulator"
	KindVLLM      = "vllm"
	KindVLLMSleep = "vllm-sleep"
	KindLullVLLM  = "lull-vllm"
	KindKvcached  = "kvcached"
	KindSGLang    = "sglang"
	KindTriton    = "triton"
	KindLlamaCPP  = "llamacpp"
	KindTGI       = "tgi"
	KindOllama    = "ollama"
	KindOpenAI    = "openai"
)

// Kinds are all kinds that a config may name.
func Kinds() []string {
	return []string{
		KindAuto, KindEmulator, KindVLLM, KindVLLMSleep, KindLullVLLM, KindKvcached, KindSGLang, KindTriton, KindLlamaCPP, KindTGI, KindOllama, KindOpenAI,
	}
}

// Config is one server to open.
type Config struct {
	// Name stands in errors, metrics and the ledger.
	Name string
	// Kind is one of the Kind constants; auto asks the server what it is.
	Kind string
	// URL is the server's address, as endpoint.Parse reads it.
	URL string
	// TLS is for an https URL; an https MetricsURL beside it shares it.
	TLS endpoint.TLS
	// PID is the server's process where the caller knows it.
	PID int
	// Page is the path of lull-vllm's shared-memory page.
	Page string
	// Segment is the path of kvcached's shared-memory segment, which is
	// /dev/shm/KVCACHED_IPC_NAME.
	Segment string
	// MetricsURL is where Triton publishes its metrics; empty means port 8002 of
	// URL's host.
	MetricsURL string
	// Models are those of a Triton's models that are loaded and unloaded: the server's
	// sample leaves their bytes to them.
	Models []Model
	// Model is the one of them that is opened in the server's place; nil opens the
	// server.
	Model *Model
	// Key goes to the server as a bearer token, and to no other address; it is never
	// printed.
	Key string
	// Pool, BytesPerToken and BlockTokens replace what the server says, and fill
	// in what it does not; 0 leaves it to the server.
	Pool          size.Bytes
	BytesPerToken size.Bytes
	BlockTokens   int
	// Timeout ends one exchange with the server. Default 2 s: shorter takes a busy
	// server for a dead one, longer notices a dead one late.
	Timeout time.Duration
	// Now is the clock of Sample.At. Default time.Now.
	Now func() time.Time
	// Transport carries the exchanges. Default one of the engine's own, which uses
	// no proxy.
	Transport http.RoundTripper
}

// Model is one model of a server and what it takes of each device while it is
// loaded.
type Model struct {
	Name  string
	Bytes size.Bytes
}

// DefaultConfig has every default that does not depend on the server.
func DefaultConfig() Config {
	return Config{Kind: KindAuto, Timeout: 2 * time.Second, Now: time.Now}
}

// withDefaults fills in the zero values that make no sense.
func (c Config) withDefaults() Config {
	d := DefaultConfig()
	if c.Kind == "" {
		c.Kind = d.Kind
	}
	if c.Timeout == 0 {
		c.Timeout = d.Timeout
	}
	if c.Now == nil {
		c.Now = d.Now
	}
	c.URL = strings.TrimRight(c.URL, "/")
	c.MetricsURL = strings.TrimRight(c.MetricsURL, "/")
	return c
}

// Validate names the key, the value and the rule of the first thing wrong.
func (c Config) Validate() error {
	at, wrong := endpoint.Parse(c.URL)
	var meterWrong error
	if c.MetricsURL != "" {
		_, meterWrong = endpoint.Parse(c.MetricsURL)
	}
	switch {
	case c.Name == "":
		return fmt.Errorf("engine: name: got %q, want a name", c.Name)
	case !slices.Contains(Kinds(), c.Kind):
		return fmt.Errorf("engine %s: kind: got %q, want one of %v", c.Name, c.Kind, Kinds())
	case wrong != nil:
		return fmt.Errorf("engine %s: url: %w", c.Name, wrong)
	case meterWrong != nil:
		return fmt.Errorf("engine %s: metrics_url: %w", c.Name, meterWrong)
	case c.Kind == KindKvcached && !filepath.IsAbs(c.Segment):
		return fmt.Errorf("engine %s: segment: got %q, want the path of kvcached's segment, /dev/shm/ and its KVCACHED_IPC_NAME", c.Name, c.Segment)
	case c.Model != nil && (c.Kind != KindTriton || c.Model.Name == "" || c.Model.Bytes <= 0):
		return fmt.Errorf("engine %s: model: got %q of %v for the kind %s, want a name and more than 0, for triton only", c.Name, c.Model.Name, c.Model.Bytes, c.Kind)
	case c.Timeout <= 0:
		return fmt.Errorf("engine %s: timeout: got %v, want more than 0", c.Name, c.Timeout)
	case c.Pool < 0 || c.BytesPerToken < 0 || c.BlockTokens < 0:
		return fmt.Errorf("engine %s: pool, bytes_per_token, block_tokens: got %v, %v, %d, want 0 or more", c.Name, c.Pool, c.BytesPerToken, c.BlockTokens)
	}
	if err := c.TLS.Validate(at); err != nil {
		return fmt.Errorf("engine %s: %w", c.Name, err)
	}
	return nil
}
