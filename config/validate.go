package config

import (
	"fmt"
	"net"
	"net/url"
	"slices"
)

var (
	engineKinds = []string{"auto", "emulator", "vllm", "lull-vllm", "llamacpp", "openai"}
	logLevels   = []string{"debug", "info", "warn", "error"}
)

// Validate names the key, the value and the rule of the first thing wrong.
// Rules that belong to one package are checked by that package's own Config.
func (f File) Validate() error {
	for _, at := range []struct{ key, addr string }{{"listen", f.Listen}, {"admin.listen", f.Admin.Listen}} {
		if _, _, err := net.SplitHostPort(at.addr); err != nil {
			return fmt.Errorf("%s: got %q, want host:port", at.key, at.addr)
		}
	}
	if f.Trainers.Socket == "" {
		return fmt.Errorf("trainers.socket: got \"\", want the path of a Unix socket")
	}
	if f.Trainers.Heartbeat <= 0 {
		return fmt.Errorf("trainers.heartbeat: got %v, want more than 0", f.Trainers.Heartbeat)
	}
	if f.Trainers.Lease < f.Trainers.Heartbeat {
		return fmt.Errorf("trainers.lease: got %v, want at least the heartbeat %v", f.Trainers.Lease, f.Trainers.Heartbeat)
	}
	if f.Proxy.IdleTimeout <= 0 {
		return fmt.Errorf("proxy.idle_timeout: got %v, want more than 0", f.Proxy.IdleTimeout)
	}
	if !slices.Contains(logLevels, f.Telemetry.LogLevel) {
		return fmt.Errorf("telemetry.log_level: got %q, want one of %v", f.Telemetry.LogLevel, logLevels)
	}
	devices, err := f.validateDevices()
	if err != nil {
		return err
	}
	return f.validateEngines(devices)
}

func (f File) validateDevices() (map[string]bool, error) {
	ids := map[string]bool{}
	for i, d := range f.Devices {
		key := fmt.Sprintf("devices[%d]", i)
		switch {
		case d.ID == "":
			return nil, fmt.Errorf("%s.id: got \"\", want a name", key)
		case ids[d.ID]:
			return nil, fmt.Errorf("%s.id: got %q again, want each device once", key, d.ID)
		case d.Kind != "host":
			return nil, fmt.Errorf("%s.kind: got %q, want host", key, d.Kind)
		case d.Capacity <= 0:
			return nil, fmt.Errorf("%s.capacity: got %v, want more than 0", key, d.Capacity)
		case d.Headroom < 0 || d.Headroom >= d.Capacity:
			return nil, fmt.Errorf("%s.headroom: got %v, want at least 0 and below the capacity %v", key, d.Headroom, d.Capacity)
		}
		ids[d.ID] = true
	}
	return ids, nil
}

func (f File) validateEngines(devices map[string]bool) error {
	if len(f.Engines) == 0 {
		return fmt.Errorf("engines: got none, want at least one with a url")
	}
	names := map[string]bool{}
	for i, e := range f.Engines {
		key := fmt.Sprintf("engines[%d]", i)
		u, err := url.Parse(e.URL)
		switch {
		case e.Name == "":
			return fmt.Errorf("%s.name: got \"\", want a name", key)
		case names[e.Name]:
			return fmt.Errorf("%s.name: got %q again, want each engine once", key, e.Name)
		case !slices.Contains(engineKinds, e.Kind):
			return fmt.Errorf("%s.kind: got %q, want one of %v", key, e.Kind, engineKinds)
		case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
			return fmt.Errorf("%s.url: got %q, want http://host:port or https://host:port", key, e.URL)
		case e.Kind == "lull-vllm" && e.Page == "":
			return fmt.Errorf("%s.page: got \"\", want the path of lull-vllm's page (see docs/VLLM.md)", key)
		}
		for _, id := range e.Devices {
			if !devices[id] {
				return fmt.Errorf("%s.devices: got %q, want the id of a device in devices", key, id)
			}
		}
		names[e.Name] = true
	}
	return nil
}
