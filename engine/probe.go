package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lull-project/lull/endpoint"
)

// ProbeConfig is one endpoint to look at.
type ProbeConfig struct {
	// URL is the address of the server itself, as endpoint.Parse reads it.
	URL string
	// TLS is for an https URL.
	TLS endpoint.TLS
	// MetricsURL is where Triton publishes its metrics; empty means port 8002.
	MetricsURL string
	// Key is the server's API key, where it wants one.
	Key string
	// Timeout ends the whole of it. Shorter misses a busy server; longer lets a
	// silent one keep you waiting.
	Timeout time.Duration
	// Shm is where kvcached's segments and lull-vllm's pages lie.
	Shm string
}

// DefaultProbe has the defaults that do not depend on the endpoint.
func DefaultProbe() ProbeConfig { return ProbeConfig{Timeout: 5 * time.Second, Shm: "/dev/shm"} }

// Validate names the first thing wrong.
func (c ProbeConfig) Validate() error {
	at, err := endpoint.Parse(c.URL)
	if err != nil {
		return fmt.Errorf("probe: url: %w", err)
	}
	if err := c.TLS.Validate(at); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	if c.MetricsURL != "" {
		if _, err := endpoint.Parse(c.MetricsURL); err != nil {
			return fmt.Errorf("probe: metrics-url: %w", err)
		}
	}
	if c.Timeout <= 0 {
		return fmt.Errorf("probe: timeout: got %v, want more than 0", c.Timeout)
	}
	return nil
}

// Report is what an endpoint was seen to be. Print writes it for people.
type Report struct {
	URL     string
	TLS     endpoint.TLS
	Version string // empty where the server does not say it
	// Models are named with their longest prompt + answer, where known.
	Models []string
	// Owner is who the list of models says that it is from.
	Owner string
	// Locked: the list of models is not for everybody.
	Locked bool
	// MetricsURL is where Triton's metrics were looked for.
	MetricsURL string
	Can        Capabilities
	Sample     Sample
	// Trouble is why there is no Sample; nil if there is one.
	Trouble error
	// Beside are elastic layers seen on this machine that may be this server's.
	Beside []Beside
}

// Beside is kvcached's segment or lull-vllm's page on this machine. Which server
// it belongs to, it does not say.
type Beside struct {
	Kind, Path string
	Sample     Sample
}

// Probe asks an endpoint what it is and reads it once as a sidecar would. It
// changes nothing there. The error wraps ErrUnreachable, ErrNotReady ErrNoServer
// or ErrLull where it is one of these.
func Probe(ctx context.Context, cfg ProbeConfig) (Report, error) {
	if err := cfg.Validate(); err != nil {
		return Report{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	ec := DefaultConfig()
	ec.Name, ec.URL, ec.TLS, ec.MetricsURL = "probe", cfg.URL, cfg.TLS, cfg.MetricsURL
	ec.Timeout, ec.Key = min(ec.Timeout, cfg.Timeout), cfg.Key
	ec = ec.withDefaults()
	if err := NotLull(ctx, ec); err != nil {
		return Report{URL: ec.URL}, fmt.Errorf("probe: %w; nothing is read", err)
	}
	c := newClient(ec)
	defer c.Close()
	f, err := look(ctx, c)
	if err != nil {
		return Report{URL: ec.URL}, probeError(err, cfg.Timeout)
	}
	r := Report{URL: ec.URL, TLS: ec.TLS, Version: f.version, Locked: f.modelsErr != nil}
	for _, m := range f.models.Data {
		name := m.ID
		if m.MaxModelLen > 0 {
			name = fmt.Sprintf("%s (at most %d tokens)", m.ID, m.MaxModelLen)
		}
		r.Models, r.Owner = append(r.Models, name), m.OwnedBy
	}
	if ec.Kind = f.kind; ec.Kind == KindTriton {
		r.MetricsURL = ec.metricsURL()
	}
	if err := r.read(ctx, ec); err != nil {
		return r, err
	}
	if onThisMachine(ec.URL) && (f.kind == KindVLLM || f.kind == KindSGLang) {
		r.Beside = beside(ctx, ec, cfg.Shm)
	}
	return r, nil
}

// read opens the engine and observes it once.
func (r *Report) read(ctx context.Context, c Config) error {
	e, err := Open(ctx, c)
	if err != nil {
		return err
	}
	defer Close(e)
	r.Can = e.Capabilities()
	r.Sample, r.Trouble = e.Observe(ctx)
	return nil
}

// probeError says what an operator can do about it.
func probeError(err error, limit time.Duration) error {
	switch {
	case errors.Is(err, ErrNotReady):
		return fmt.Errorf("%w: a server answers, and says that it is still starting; ask again when it is ready", err)
	case errors.Is(err, ErrUnreachable):
		return fmt.Errorf("%w: is the server running, and is this its own address?", err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: nothing was found out in %v; a longer --timeout gives a busy server more time", err, limit)
	}
	return err
}

// onThisMachine says that an address is a socket here or this machine's loopback.
func onThisMachine(raw string) bool {
	at, _ := endpoint.Parse(raw) // Validate has parsed it
	host := at.URL().Hostname()
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// beside looks for living pages of lull-vllm and for segments of kvcached.
func beside(ctx context.Context, c Config, shm string) []Beside {
	var out []Beside
	pages, _ := filepath.Glob(filepath.Join(shm, fmt.Sprintf("lull-%d", os.Getuid()), "*.page"))
	for _, p := range pages {
		if c.Kind != KindVLLM {
			break
		}
		c.Page = p
		e, err := openLullVLLM(c)
		if err != nil {
			continue
		}
		if s, err := e.Observe(ctx); err == nil {
			out = append(out, Beside{KindLullVLLM, p, s})
		}
		_ = Close(e)
	}
	entries, _ := os.ReadDir(shm)
	for _, d := range entries {
		info, err := d.Info()
		if err != nil || info.Size() != segmentSize || !info.Mode().IsRegular() {
			continue // kvcached's own tool knows its segments by their size too
		}
		path := filepath.Join(shm, d.Name())
		_ = withSegment(ctx, path, unix.LOCK_SH, func(_ *os.File, s segmentInfo) error {
			out = append(out, Beside{KindKvcached, path, Sample{Held: s.held(), Bound: limitNote{}.follow(s).Initial}})
			return nil
		})
	}
	return out
}
