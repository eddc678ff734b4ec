package config

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/lull-project/lull/endpoint"
	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/proxy"
	"github.com/lull-project/lull/trainer"
)

var (
	plainName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]*$`)
	variable  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	logLevels = []string{"debug", "info", "warn", "error"}
)

// Validate names the key, the value and the rule of the first thing wrong. The
// rules of policy and admission are the core's own.
func (f File) Validate() error {
	for _, at := range []struct{ key, addr string }{{"listen", f.Listen}, {"admin.listen", f.Admin.Listen}} {
		if _, _, err := net.SplitHostPort(at.addr); err != nil {
			return fmt.Errorf("%s: got %q, want host:port", at.key, at.addr)
		}
	}
	if sameSocket(f.Listen, f.Admin.Listen) {
		return fmt.Errorf("admin.listen: got %q, want another address than that for clients (listen: %q)", f.Admin.Listen, f.Listen)
	}
	if err := f.Trainers.validate(); err != nil {
		return err
	}
	if err := f.Proxy.validate(); err != nil {
		return err
	}
	if err := f.Interference.validate(); err != nil {
		return err
	}
	if !slices.Contains(logLevels, f.Telemetry.LogLevel) {
		return fmt.Errorf("telemetry.log_level: got %q, want one of %v", f.Telemetry.LogLevel, logLevels)
	}
	if err := f.SLO.validate(f.Auth); err != nil {
		return err
	}
	if err := f.Auth.validate(f.SLO.Tiers); err != nil {
		return err
	}
	if err := f.Core().Validate(); err != nil {
		return err
	}
	if err := f.Policy.Prices.validate(f.SLO); err != nil {
		return err
	}
	devices, err := f.validateDevices()
	if err != nil {
		return err
	}
	return f.validateEngines(devices)
}

func (t Trainers) validate() error {
	if t.Socket == "" {
		return fmt.Errorf("trainers.socket: got \"\", want the path of a Unix socket")
	}
	if t.Heartbeat <= 0 {
		return fmt.Errorf("trainers.heartbeat: got %v, want more than 0", t.Heartbeat)
	}
	if least := trainer.MissedHeartbeats * t.Heartbeat; t.Lease < least {
		return fmt.Errorf("trainers.lease: got %v, want at least %d heartbeats, %v", t.Lease, trainer.MissedHeartbeats, least)
	}
	if t.OnStop != OnStopDrain && t.OnStop != OnStopKeep {
		return fmt.Errorf("trainers.on_stop: got %q, want %s or %s", t.OnStop, OnStopDrain, OnStopKeep)
	}
	return nil
}

func (p Proxy) validate() error {
	if p.IdleTimeout <= 0 {
		return fmt.Errorf("proxy.idle_timeout: got %v, want more than 0", p.IdleTimeout)
	}
	if p.Usage != "pass" && p.Usage != "inject" {
		return fmt.Errorf("proxy.usage: got %q, want pass or inject", p.Usage)
	}
	if err := proxy.ValidBalance(p.Balance, p.Failover); err != nil {
		return err
	}
	if p.UpstreamKeyFile != "" && p.UpstreamKeyEnv != "" {
		return fmt.Errorf("proxy.upstream_key_env: got %q beside upstream_key_file, want one of them", p.UpstreamKeyEnv)
	}
	if e := p.UpstreamKeyEnv; e != "" && !variable.MatchString(e) {
		// A key that was put here by mistake must not reach a log.
		return fmt.Errorf("proxy.upstream_key_env: got what is no name of a variable, want one such as VLLM_API_KEY; the key itself stands in no file")
	}
	return nil
}

func (i Interference) validate() error {
	if i.Yield != Auto && i.Yield != Never {
		return fmt.Errorf("interference.yield: got %q, want %s or %s", i.Yield, Auto, Never)
	}
	if i.Pace != Auto && i.Pace != Never && i.Pace != Priced {
		return fmt.Errorf("interference.pace: got %q, want %s, %s or %s", i.Pace, Auto, Never, Priced)
	}
	if i.ProgressFloor <= 0 || i.ProgressFloor > 1 {
		return fmt.Errorf("interference.progress_floor: got %v, want more than 0, at most 1", i.ProgressFloor)
	}
	return nil
}

// sameSocket says that two addresses surely cannot both be listened at. Port 0 is
// a free one each; whether one family's wildcard takes the other's addresses too
// is the system's choice, but for [::] and no host at all.
func sameSocket(a, b string) bool {
	hostA, portA, _ := net.SplitHostPort(a)
	hostB, portB, _ := net.SplitHostPort(b)
	if portA != portB || portA == "0" {
		return false
	}
	ipA, ipB := net.ParseIP(hostA), net.ParseIP(hostB)
	takes := func(host string, ip, other net.IP) bool {
		switch {
		case host == "" || ip.Equal(net.IPv6unspecified):
			return true
		case ip.Equal(net.IPv4zero):
			return other.To4() != nil
		}
		return false
	}
	return hostA == hostB || ipA != nil && ipA.Equal(ipB) || takes(hostA, ipA, ipB) || takes(hostB, ipB, ipA)
}

// Core is what policy and admission say to the core. It names no session,
// devices or engines: those the sidecar finds out.
func (f File) Core() handover.Config {
	c := handover.DefaultConfig()
	c.Mode, c.StaticKVFrac = f.Policy.Mode, f.Policy.StaticKVFrac
	c.Quantum, c.Reserve, c.Quantile, c.Horizon = f.Policy.Quantum, f.Policy.Reserve, f.Policy.Quantile, f.Policy.Horizon
	c.Limit = handover.Limit(f.Policy.ShrinkLimit)
	c.AckWithin, c.Hold, c.Owed, c.QueueLimit = f.Admission.Within, f.Admission.Hold, f.Admission.Owed, f.Admission.QueueLimit
	return c
}

// validateDevices returns the kinds by id.
func (f File) validateDevices() (map[string]string, error) {
	kinds, gpus := map[string]string{}, map[GPU]bool{}
	for i, d := range f.Devices {
		key := fmt.Sprintf("devices[%d]", i)
		switch {
		case d.ID == "":
			return nil, fmt.Errorf("%s.id: got \"\", want a name", key)
		case !plainName.MatchString(d.ID):
			return nil, fmt.Errorf("%s.id: got %q, want letters, digits, -, _ and . only: it names the lock file", key, d.ID)
		case kinds[d.ID] != "":
			return nil, fmt.Errorf("%s.id: got %q again, want each device once", key, d.ID)
		case d.GPU != "" && gpus[d.GPU]:
			return nil, fmt.Errorf("%s.gpu: got %q again, want each GPU once", key, d.GPU)
		}
		if err := d.validate(key); err != nil {
			return nil, err
		}
		kinds[d.ID], gpus[d.GPU] = d.Kind, true
	}
	return kinds, nil
}

func (f File) validateEngines(kinds map[string]string) error {
	if len(f.Engines) == 0 {
		return fmt.Errorf("engines: got none, want at least one with a url")
	}
	names, urls, segments := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for i, e := range f.Engines {
		key := fmt.Sprintf("engines[%d]", i)
		if err := e.validate(key); err != nil {
			return err
		}
		at, _ := endpoint.Parse(e.URL)
		switch {
		case names[e.Name]:
			return fmt.Errorf("%s.name: got %q again, want each engine once", key, e.Name)
		case urls[at.String()]:
			return fmt.Errorf("%s.url: got %q again, want each server once: two engines cannot be read at one address", key, e.URL)
		case segments[e.Segment]:
			return fmt.Errorf("%s.segment: got %q again, want each engine's own", key, e.Segment)
		case at.Host() == f.Listen:
			return fmt.Errorf("%s.url: got %q, want the LLM server's address: this is Lull's own (listen)", key, e.URL)
		default:
			urls[at.String()], segments[e.Segment] = true, e.Segment != ""
		}
		for j, id := range e.Devices {
			if kinds[id] == "" {
				return fmt.Errorf("%s.devices: got %q, want the id of a device in devices", key, id)
			}
			if slices.Contains(e.Devices[:j], id) {
				return fmt.Errorf("%s.devices: got %q again, want each device once", key, id)
			}
		}
		if err := e.validateRoom(key, f.Devices); err != nil {
			return err
		}
		if id, yes := e.mixed(kinds); yes {
			return fmt.Errorf("%s.devices: got %q (%s) beside %q (%s), want devices of one kind: its KV takes bytes from all of them alike",
				key, id, kinds[id], e.Devices[0], kinds[e.Devices[0]])
		}
		names[e.Name] = true
		for _, m := range e.Models {
			if id := e.ModelID(m.Name); names[id] {
				return fmt.Errorf("%s.models: got %q, which is an engine's name too, want another name for the engine", key, id)
			} else {
				names[id] = true
			}
		}
	}
	return nil
}

// validate looks at one engine by itself.
func (e Engine) validate(key string) error {
	at, wrong := endpoint.Parse(e.URL)
	switch {
	case e.Name == "":
		return fmt.Errorf("%s.name: got \"\", want a name", key)
	case !slices.Contains(engine.Kinds(), e.Kind):
		return fmt.Errorf("%s.kind: got %q, want one of %v", key, e.Kind, engine.Kinds())
	case wrong != nil:
		return fmt.Errorf("%s.url: %w", key, wrong)
	case strings.HasSuffix(at.Base(), "/v1"):
		return fmt.Errorf("%s.url: got %q, want the server's address without /v1: clients send it in their paths", key, e.URL)
	case e.PID < 0:
		return fmt.Errorf("%s.pid: got %d, want the number of the server's process, or 0 to find it by the port or socket of url", key, e.PID)
	case e.Page != "" && (!filepath.IsAbs(e.Page) || filepath.Ext(e.Page) != ".page"):
		return fmt.Errorf("%s.page: got %q, want an absolute path that ends in .page (see docs/VLLM.md)", key, e.Page)
	case e.Kind == engine.KindKvcached && !filepath.IsAbs(e.Segment):
		return fmt.Errorf("%s.segment: got %q, want /dev/shm/ and the server's KVCACHED_IPC_NAME (see docs/ENGINES.md)", key, e.Segment)
	case e.Idle > 0 && e.Kind != engine.KindVLLMSleep && len(e.Models) == 0:
		return fmt.Errorf("%s.idle: got %v for the kind %s, want it for vllm-sleep and for models of triton only: others lend what they have by parts", key, e.Idle, e.Kind)
	case e.MinBound > 0 && e.Kind == engine.KindVLLMSleep:
		return fmt.Errorf("%s.min_bound: got %v for the kind vllm-sleep, want none: its pool goes whole or not at all", key, e.MinBound)
	case e.Segment != "" && e.Kind != engine.KindKvcached:
		return fmt.Errorf("%s.segment: got %q for the kind %s, want it for kvcached only", key, e.Segment, e.Kind)
	}
	if e.MetricsURL != "" {
		if _, err := endpoint.Parse(e.MetricsURL); err != nil {
			return fmt.Errorf("%s.metrics_url: %w", key, err)
		}
	}
	if err := e.TLS.Validate(at); err != nil {
		return fmt.Errorf("%s.%w", key, err)
	}
	if err := e.validateModels(key); err != nil {
		return err
	}
	return e.validateStages(key)
}
