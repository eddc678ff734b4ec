package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/endpoint"
	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
)

// assembleRetry spaces the tries to reach the engines before the core is made.
const assembleRetry = 250 * time.Millisecond

// assemble waits until every engine has said what it is, then makes the core.
// Until then requests pass and nothing is lent. It ends when ctx does.
func (s *Sidecar) assemble(ctx context.Context) {
	said := ""
	for {
		core, drivers, err := s.tryAssemble(ctx)
		if err == nil {
			s.adopt(ctx, core, drivers)
			return
		}
		s.loop.post(ctx, input{do: func(l *loop) { l.view.problem("engines", err.Error()) }})
		if errors.Is(err, errNeverRight) {
			s.log.Error("nothing will be lent", "err", err)
			return
		}
		if text := err.Error(); text != said {
			said = text
			s.log.Warn("an engine does not answer; requests are relayed, nothing is lent yet", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(assembleRetry):
		}
	}
}

// errNeverRight marks a config that no waiting mends.
var errNeverRight = errors.New("mend lull.yaml and start again; requests pass, nothing is lent")

func (s *Sidecar) tryAssemble(ctx context.Context) (*handover.Handover, []*engineDriver, error) {
	cfg := coreConfig(s.file, s.session)
	var drivers []*engineDriver
	for _, c := range s.file.Engines {
		if len(c.Devices) == 0 {
			continue // relayed and measured, not in any ledger
		}
		d, ec, err := s.meet(ctx, c)
		if err != nil {
			for _, d := range drivers {
				_ = engine.Close(d.engine)
			}
			return nil, nil, err
		}
		drivers = append(drivers, d)
		cfg.Engines = append(cfg.Engines, ec)
	}
	core, err := handover.New(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", err, errNeverRight)
	}
	for _, text := range tight(cfg) {
		s.log.Warn(text)
		s.loop.view.problem("capacity", text)
	}
	return core, drivers, nil
}

// tight says which devices are smaller than their servers with their whole pools:
// right where a pool is meant to be lent away for good, else a slip of the pen.
func tight(cfg handover.Config) []string {
	var found []string
	for _, d := range cfg.Devices {
		need := d.Headroom
		for _, e := range cfg.Engines {
			if slices.Contains(e.Devices, d.ID) {
				need += e.Resident + e.Pool
			}
		}
		if need > d.Capacity {
			found = append(found, fmt.Sprintf("devices.%s.capacity: %v is below resident + pool + headroom, %v: the server's KV is bound below its pool even without training", d.ID, d.Capacity, need))
		}
	}
	return found
}

// meet opens an engine and reads it once.
func (s *Sidecar) meet(ctx context.Context, c config.Engine) (*engineDriver, handover.EngineConfig, error) {
	none := handover.EngineConfig{}
	ec := engine.DefaultConfig()
	ec.Name, ec.Kind, ec.URL, ec.PID, ec.Page = c.Name, c.Kind, c.URL, c.PID, c.Page
	ec.TLS, ec.Segment, ec.MetricsURL = c.TLS, c.Segment, c.MetricsURL
	ec.Pool, ec.BytesPerToken, ec.BlockTokens = c.Pool, c.BytesPerToken, c.BlockTokens
	e, err := engine.Open(ec)
	if err != nil {
		return nil, none, err
	}
	sample, err := e.Observe(ctx)
	if err != nil {
		_ = engine.Close(e)
		return nil, none, err
	}
	d := &engineDriver{
		id: handover.EngineID(c.Name), engine: e, loop: s.loop, log: s.log, busy: s.busy.Load,
		every: cadenceOf(e.Capabilities()), bounds: make(chan struct{}, 1), probes: make(chan time.Time, 1),
		truth: &residency{now: s.loop.clock, listener: listenerOf(c.URL), pid: c.PID},
	}
	resident := d.truth.resident(ctx, e, sample)
	hc, err := describe(c, e.Capabilities(), sample, resident)
	if err != nil {
		_ = engine.Close(e)
		return nil, none, err
	}
	if text := doubtful(c, sample); text != "" {
		s.log.Warn(text)
		s.loop.view.problem("pool", text)
	}
	return d, hc, nil
}

// doubtful says what the config wants of a server that has less.
func doubtful(c config.Engine, s engine.Sample) string {
	key, want := "pool", c.Pool
	if want <= s.Pool {
		key, want = "min_bound", c.MinBound
	}
	if s.Pool <= 0 || want <= s.Pool {
		return ""
	}
	return fmt.Sprintf("engines.%s.%s: %v is more than the server's own pool, %v: what is above it is kept for nobody", c.Name, key, want, s.Pool)
}

// describe joins what the config says, what the engine says and what the device
// shows; the config wins.
func describe(c config.Engine, can engine.Capabilities, s engine.Sample, resident size.Bytes) (handover.EngineConfig, error) {
	out := handover.EngineConfig{
		ID: handover.EngineID(c.Name), Fence: handover.FenceStatic, Pool: pick(c.Pool, s.Pool), Resident: pick(c.Resident, resident, s.Resident),
		StartBytes: c.Start, BytesPerToken: pick(c.BytesPerToken, s.BytesPerToken), BlockTokens: max(c.BlockTokens, s.BlockTokens),
		MaxModelLen: s.MaxModelLen, Preempts: can.Preempts, AllocDelay: c.AllocDelay,
	}
	if c.BlockTokens > 0 {
		out.BlockTokens = c.BlockTokens
	}
	for _, id := range c.Devices {
		out.Devices = append(out.Devices, handover.DeviceID(id))
	}
	if can.Bound {
		out.Fence = handover.FenceHard
		out.MinBound = pick(c.MinBound, min(size.Bytes(s.MaxModelLen)*out.BytesPerToken, out.Pool/8))
		switch {
		case out.Pool <= 0:
			return out, fmt.Errorf("engines.%s.pool: the engine does not say it, want its size: %w", c.Name, errNeverRight)
		case out.BytesPerToken <= 0:
			return out, fmt.Errorf("engines.%s.bytes_per_token: the engine does not say it, want its size: %w", c.Name, errNeverRight)
		}
	}
	if can.Static && out.Pool > 0 && c.Resident == 0 {
		// The pool was allocated at start, so it stands in the process's bytes as far
		// as it was touched; what is not touched yet must stay free as well.
		out.Resident = max(0, out.Resident-min(s.Held, out.Resident))
	}
	return out, nil
}

// pick is the first that is known.
func pick(values ...size.Bytes) size.Bytes {
	for _, v := range values {
		if v > 0 {
			return v
		}
	}
	return 0
}

// listenerOf finds the process of a server on this machine; nil for any other,
// whose process is not here to be read.
func listenerOf(raw string) func() (int, error) {
	at, _ := endpoint.Parse(raw) // config has parsed it
	if path := at.Socket(); path != "" {
		return func() (int, error) { return device.PIDBySocket(path) }
	}
	if port := portOf(at.URL()); port != 0 {
		return func() (int, error) { return device.PIDByPort(port) }
	}
	return nil
}

// portOf is the port of a server on this machine, 0 for any other.
func portOf(u *url.URL) int {
	if !local(u.Hostname()) {
		return 0
	}
	if port, err := strconv.Atoi(u.Port()); err == nil {
		return port
	}
	port, _ := net.LookupPort("tcp", u.Scheme)
	return port
}

// local says that a host name or address is this machine's loopback or one of
// its own addresses.
func local(host string) bool {
	addrs, err := net.LookupIP(host)
	if err != nil || len(addrs) == 0 {
		return false
	}
	own, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		mine := a.IsLoopback()
		for _, o := range own {
			if n, ok := o.(*net.IPNet); ok && n.IP.Equal(a) {
				mine = true
			}
		}
		if !mine {
			return false
		}
	}
	return true
}

// coreConfig is the part of the core's config that lull.yaml alone decides.
func coreConfig(f config.File, session uint32) handover.Config {
	cfg := f.Core()
	cfg.Session = session
	for _, d := range f.Devices {
		cfg.Devices = append(cfg.Devices, handover.DeviceConfig{ID: handover.DeviceID(d.ID), Capacity: d.Capacity, Headroom: d.Headroom})
	}
	return cfg
}

// adopt hands the core to the loop, tells it of the trainers that came before,
// and lets the drivers run.
func (s *Sidecar) adopt(ctx context.Context, core *handover.Handover, drivers []*engineDriver) {
	done := make(chan struct{})
	s.loop.post(ctx, input{do: func(l *loop) {
		defer close(done)
		l.core = core
		l.view.clearProblem("engines")
		for _, d := range drivers {
			l.engines[d.id] = d
		}
		for id, t := range l.trainers {
			if t.session != nil {
				l.step(helloEvent(l.now(), id, t.hello))
			}
			l.readTrainer(t)
			l.drain()
		}
	}})
	select {
	case <-done:
	case <-ctx.Done():
		return
	}
	s.lent.Store(true)
	if len(drivers) > 0 {
		s.log.Info("deciding", "engines", len(drivers))
	}
	if text := onlyRelays(drivers); text != "" {
		s.log.Warn(text)
	}
	for _, d := range drivers {
		s.wg.Go(func() { d.observe(ctx) })
		s.wg.Go(func() { d.bound(ctx) })
		s.wg.Go(func() { d.probeIdle(ctx) })
	}
}

// onlyRelays says why no engine lends anything, where that is so: somebody who
// waits for a handover must read it at the start.
func onlyRelays(drivers []*engineDriver) string {
	const so = "Lull only relays and measures: "
	if len(drivers) == 0 {
		return so + "no engine is on a device, so nothing is lent; devices and engines[].devices of a lull.yaml name one (`lull config --print-default`)"
	}
	var static []string
	for _, d := range drivers {
		can := d.engine.Capabilities()
		if can.Bound {
			return ""
		}
		static = append(static, fmt.Sprintf("%s (%s)", d.id, can.Kind))
	}
	return so + "no server's KV memory moves, of " + strings.Join(static, ", ") +
		"; training gets only what stands beside it. docs/ENGINES.md says which servers lend"
}
