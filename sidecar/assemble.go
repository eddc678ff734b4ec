package sidecar

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lull-project/lull/config"
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
	var doubts []string
	for _, c := range s.file.Engines {
		if len(c.Devices) == 0 {
			continue // relayed and measured, not in any ledger
		}
		met, ecs, err := s.meetAll(ctx, c)
		drivers, cfg.Engines = append(drivers, met...), append(cfg.Engines, ecs...)
		if err != nil {
			for _, d := range drivers {
				_ = engine.Close(d.engine)
			}
			return nil, nil, err
		}
		for _, d := range met {
			if d.doubt != "" {
				doubts = append(doubts, d.doubt)
			}
		}
	}
	core, err := handover.New(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", err, errNeverRight)
	}
	for _, text := range append(doubts, tight(cfg)...) {
		s.log.Warn(text)
		about, what, _ := strings.Cut(text, ": ")
		s.loop.view.problem(about, what)
	}
	return core, drivers, nil
}

// engineConfig is what the file says to the engine's own client.
func engineConfig(c config.Engine) engine.Config {
	ec := engine.DefaultConfig()
	ec.Name, ec.Kind, ec.URL, ec.TLS, ec.PID = c.Name, c.Kind, c.URL, c.TLS, c.PID
	ec.Page, ec.Segment, ec.MetricsURL = c.Page, c.Segment, c.MetricsURL
	ec.Pool, ec.BytesPerToken, ec.BlockTokens = c.Pool, c.PerToken(), c.BlockTokens
	for _, m := range c.Models {
		ec.Models = append(ec.Models, engine.Model(m))
	}
	return ec
}

// modelConfig is the same for one of a server's models.
func modelConfig(c config.Engine, which int) engine.Config {
	ec := engineConfig(c)
	m := ec.Models[which]
	ec.Name, ec.Model, ec.Models, ec.PID = c.ModelID(m.Name), &m, nil, 0
	return ec
}

// meetAll meets an engine and its models. With an error those that were met come too.
func (s *Sidecar) meetAll(ctx context.Context, c config.Engine) (met []*engineDriver, ecs []handover.EngineConfig, err error) {
	configs := []engine.Config{engineConfig(c)}
	for i := range c.Models {
		configs = append(configs, modelConfig(c, i))
	}
	for _, ec := range configs {
		d, hc, err := s.meet(ctx, c, ec)
		if err != nil {
			return met, nil, err
		}
		if met, ecs = append(met, d), append(ecs, hc); ec.Model != nil {
			d.scale = met[0].truth
		}
	}
	return met, ecs, nil
}

// meet opens an engine, or one of its models, and reads it once.
func (s *Sidecar) meet(ctx context.Context, c config.Engine, ec engine.Config) (*engineDriver, handover.EngineConfig, error) {
	none := handover.EngineConfig{}
	e, err := engine.Open(ctx, ec)
	if err != nil {
		return nil, none, err
	}
	sample, err := e.Observe(ctx)
	if err != nil {
		_ = engine.Close(e)
		return nil, none, err
	}
	d := &engineDriver{
		id: handover.EngineID(ec.Name), engine: e, loop: s.loop, log: s.log, busy: s.busy.Load,
		models: len(c.Models) > 0, every: cadenceOf(e.Capabilities()), bounds: make(chan struct{}, 1), probes: make(chan time.Time, 1),
		truth: &residency{now: s.loop.clock, books: s.booksOf(c.Devices), layout: staged(c), listener: listenerOf(c.URL), pid: c.PID},
	}
	if ec.Model != nil { // what is not its models' is the server's
		d.server, d.models, d.truth = handover.EngineID(c.Name), false, &residency{now: s.loop.clock}
		c = ofModel(c, ec)
	}
	resident := d.truth.resident(ctx, e, sample)
	hc, err := describe(c, e.Capabilities(), sample, resident)
	if err != nil {
		_ = engine.Close(e)
		return nil, none, err
	}
	d.devices = hc.Devices
	if e.Capabilities().Bound {
		d.doubt = doubtful(c, sample)
	}
	return d, hc, nil
}

// describe joins what the config says, what the engine says and what the device
// shows; the config wins.
func describe(c config.Engine, can engine.Capabilities, s engine.Sample, resident size.Bytes) (handover.EngineConfig, error) {
	layout := staged(c)
	out := handover.EngineConfig{
		ID: handover.EngineID(c.Name), Fence: handover.FenceStatic, Pool: pick(c.Pool, s.Pool), Resident: pick(c.Resident, resident, s.Resident),
		StartBytes: c.Start, Devices: layout.Devices, Stages: layout.Stages,
		BytesPerToken: pick(layout.BytesPerToken, s.BytesPerToken), BlockTokens: max(c.BlockTokens, s.BlockTokens),
		MaxModelLen: s.MaxModelLen, Preempts: can.Preempts, AllocDelay: c.AllocDelay, Whole: can.Whole, Idle: c.Idle,
	}
	if c.BlockTokens > 0 {
		out.BlockTokens = c.BlockTokens
	}
	if said := s.BytesPerToken; len(c.Stages) > 0 && said > 0 && said != c.PerToken() {
		return out, fmt.Errorf("engines.%s.stages: the fullest has %v a token, want %v, which the server says of its own bytes: %w", c.Name, c.PerToken(), said, errNeverRight)
	}
	if can.Bound {
		out.Fence = handover.FenceHard
		out.MinBound = pick(c.MinBound, min(size.Bytes(s.MaxModelLen)*out.BytesPerToken, out.Pool/8))
		switch {
		case out.Pool <= 0:
			return out, fmt.Errorf("engines.%s.pool: the engine does not say it, want its size: %w", c.Name, errNeverRight)
		case out.BytesPerToken <= 0 && !can.Refuses: // whose requests take nothing beyond what it has
			return out, fmt.Errorf("engines.%s.bytes_per_token: the engine does not say it, want its size: %w", c.Name, errNeverRight)
		}
	}
	if can.Refuses {
		out.Await, out.Server, out.Warm = c.Awaits(), c.URL, c.Warm
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

// coreConfig is the part of the core's config that lull.yaml alone decides.
func coreConfig(f config.File, session uint32) handover.Config {
	cfg := f.Core()
	cfg.Session = session
	for _, d := range f.Devices {
		cfg.Devices = append(cfg.Devices, handover.DeviceConfig{ID: handover.DeviceID(d.ID), Capacity: d.Capacity, Headroom: d.Headroom})
	}
	return cfg
}

// booksOf are those of an engine's devices, which are of one kind.
func (s *Sidecar) booksOf(ids []string) books {
	var gpus gpuBooks
	for _, id := range ids {
		if d := s.gpus[handover.DeviceID(id)]; d != nil {
			gpus = append(gpus, d)
		}
	}
	if len(gpus) == 0 {
		return hostBooks{}
	}
	return gpus
}

// adopt hands the core to the loop, tells it of the trainers that came before,
// and lets the drivers run.
func (s *Sidecar) adopt(ctx context.Context, core *handover.Handover, drivers []*engineDriver) {
	done := make(chan struct{})
	s.loop.post(ctx, input{do: func(l *loop) {
		defer close(done)
		l.core = core
		l.tellPrices() // nobody was told before
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
	if text := onlyRelays(drivers); text != "" && (len(drivers) > 0 || len(s.found.problems) == 0) { // else it has been said why
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
