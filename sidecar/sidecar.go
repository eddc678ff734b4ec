package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/proxy"
	"github.com/lull-project/lull/size"
	"github.com/lull-project/lull/telemetry"
	"github.com/lull-project/lull/trainer"
)

// Sidecar is one running `lull serve`.
type Sidecar struct {
	file    config.File // as it was at the start; reload has what is in force
	data    proxy.Config
	log     *slog.Logger
	session uint32
	locks   []*device.Lock
	found   foundGPUs
	gpus    map[handover.DeviceID]*gpuDriver
	metrics *telemetry.Metrics
	events  *telemetry.Events
	loop    *loop
	gate    *gate
	busy    atomic.Bool
	lent    atomic.Bool
	closing atomic.Bool
	hurry   hurry
	reload  *reloader
	wg      sync.WaitGroup
	// process opens a trainer's books.
	process func(pid int) (*device.Process, error)
}

// New takes the locks of the config's devices and makes everything that needs
// no network. Close it by running it, or by Release.
func New(file config.File, log *slog.Logger) (*Sidecar, error) {
	return newSidecar(file, log, openGPU)
}

func newSidecar(file config.File, log *slog.Logger, open func(which string) (gpu, error)) (*Sidecar, error) {
	if err := file.Validate(); err != nil {
		return nil, err
	}
	given := file // what a reload compares with
	file, tooLarge, err := fitted(file, log)
	if err != nil {
		return nil, err
	}
	data, err := proxyConfig(file)
	if err != nil {
		return nil, err
	}
	found := findGPUs(file, open)
	file = found.file
	s := &Sidecar{file: file, found: found, data: data, log: log, metrics: telemetry.NewMetrics(), hurry: newHurry(), reload: newReloader(given), process: device.Open}
	if err := s.lock(); err != nil {
		return nil, err
	}
	if err := coreConfig(file, s.session).Validate(); err != nil {
		s.release()
		return nil, err
	}
	if file.Telemetry.Events != "" {
		events, err := telemetry.OpenEvents(file.Telemetry.Events, s.metrics)
		if err != nil {
			s.release()
			return nil, err
		}
		s.events = events
	}
	s.wire()
	s.wireDevices()
	if tooLarge != nil {
		s.loop.view.problem("lull.yaml", tooLarge.Error())
	}
	return s, nil
}

// wire makes the loop and the gate.
func (s *Sidecar) wire() {
	score := newScore(s.file.SLO, s.file.Admission.Within, time.Now, s.metrics)
	s.loop = &loop{
		ctx: context.Background(), clock: time.Now, start: time.Now(), inputs: make(chan input, inputQueue), log: s.log,
		metrics: s.metrics, events: s.events, pace: defaultPace(), compute: newCompute(s.file.SLO.Promises(), s.file.Interference, rand.Float64),
		pricing: newPricing(s.file.Policy.Prices, s.file.SLO.Location(), rand.Float64), requests: newRequests(), flag: &s.busy, lent: &s.lent,
		engines: map[handover.EngineID]*engineDriver{}, trainers: map[handover.TrainerID]*trainerPeer{},
		recent: &history{}, view: newView(score, s.session),
	}
	s.gate = &gate{loop: s.loop, metrics: s.metrics, score: score, lent: s.lent.Load, first: s.file.Engines[0].Name, ledgers: newLedgers(s.file)}
	s.metrics.ShowServing(s.serving)
	s.metrics.ShowReserves(s.loop.view.reserves)
	s.metrics.ShowOwners(s.loop.view.memory)
	s.metrics.ShowStages(s.loop.view.stages)
}

// withRemedy adds to an error of a place that only root may write what to do.
func withRemedy(err error) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return fmt.Errorf("%w: want to run as root, or a state_dir and a trainers.socket in a directory of your own (lull.yaml)", err)
}

// lock takes every device's lock; the session is the largest of their counters.
func (s *Sidecar) lock() error {
	for _, d := range s.file.Devices {
		l, err := device.Acquire(s.file.StateDir, s.lockName(d))
		if err != nil {
			s.release()
			return withRemedy(err)
		}
		if l.Unreadable != "" {
			s.log.Warn("the file that counts the sidecar's starts held no counter; it counts anew, above what trainers and engines have seen",
				"device", d.ID, "dir", s.file.StateDir, "held", l.Unreadable)
		}
		s.locks = append(s.locks, l)
		s.session = max(s.session, l.Session)
	}
	// Every device must remember the session that its orders carried.
	for _, l := range s.locks {
		if err := l.RaiseTo(s.session); err != nil {
			s.release()
			return err
		}
	}
	return nil
}

// lockName is the id, of a GPU its UUID: whatever two configs call it, one sidecar
// writes it.
func (s *Sidecar) lockName(d config.Device) string {
	if g, ok := s.found.open[d.ID]; ok {
		return strings.ReplaceAll(g.gpu.Facts().UUID, "/", "_") // an older MIG instance has slashes in it
	}
	return d.ID
}

func (s *Sidecar) release() {
	for _, l := range s.locks {
		if err := l.Release(); err != nil {
			s.log.Warn("device lock not released", "err", err)
		}
	}
	for id, g := range s.found.open {
		if err := g.gpu.Close(); err != nil {
			s.log.Warn("GPU not closed", "device", id, "err", err)
		}
	}
	if err := s.events.Close(); err != nil {
		s.log.Warn("events file not closed", "err", err)
	}
}

// Run serves until ctx ends, then drains: new requests are turned away, open ones
// may finish within proxy.drain_timeout, then trainers are told. It prints one
// JSON line on ready when it listens.
func (s *Sidecar) Run(ctx context.Context, ready io.Writer) error {
	defer s.release()
	loopCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	s.loop.ctx = loopCtx
	servers, err := s.listen()
	if err != nil {
		return err
	}
	channel, err := s.openChannel()
	if err != nil {
		servers.close()
		return err
	}
	s.wg.Go(func() { s.loop.run(loopCtx) })
	for _, d := range s.gpus {
		s.wg.Go(func() { d.run(loopCtx) })
		s.wg.Go(func() { d.watch(loopCtx) })
	}
	s.wg.Go(func() { s.assemble(loopCtx) })
	s.reload.open(servers.front, servers.path)
	servers.serve()
	following, unfollow := context.WithCancel(ctx)
	defer unfollow()
	s.wg.Go(func() { s.follow(following) })
	s.wg.Go(func() { s.checkUpstreams(following) })
	s.wg.Go(func() { s.identifyRelayed(following) })
	if err := servers.announce(ready, channel); err != nil {
		s.log.Warn("ready line not written", "err", err)
	}
	<-ctx.Done()
	s.closing.Store(true)
	file := s.reload.close()
	err = servers.drain(file.Proxy.DrainTimeout, s.hurry.ctx)
	if channel != nil {
		s.tellTrainers(loopCtx, file.Trainers.OnStop)
		err = errors.Join(err, channel.Close())
	}
	stop()
	s.wg.Wait()
	for _, d := range s.loop.engines {
		err = errors.Join(err, engine.Close(d.engine))
	}
	s.log.Info("stopped", "after", time.Since(s.loop.start).Round(time.Millisecond))
	return err
}

// openChannel listens for trainers where there is a device to share; without
// one the sidecar needs no socket, and no right to make one.
func (s *Sidecar) openChannel() (*trainer.Server, error) {
	if len(s.file.Devices) == 0 {
		return nil, nil
	}
	return trainer.Listen(s.trainerConfig(), reception{s.sessions()})
}

func (s *Sidecar) sessions() *sessions {
	devices, capacity := map[handover.DeviceID]bool{}, map[handover.DeviceID]size.Bytes{}
	for _, d := range s.file.Devices {
		devices[handover.DeviceID(d.ID)] = true
		capacity[handover.DeviceID(d.ID)] = d.Capacity
	}
	s.loop.view.outranked = keepSession(s.locks, s.log, &s.wg)
	return &sessions{loop: s.loop, log: s.log, metrics: s.metrics, devices: devices, capacity: capacity, process: s.process, gpus: s.gpus}
}

func (s *Sidecar) trainerConfig() trainer.Config {
	c := trainer.DefaultConfig()
	c.Path, c.Heartbeat, c.Lease, c.Session = s.file.Trainers.Socket, s.file.Trainers.Heartbeat, s.file.Trainers.Lease, s.session
	flood := &limiter{most: 10, every: time.Second, now: s.loop.clock}
	c.Fault = func(_ *trainer.Session, err error) {
		level := faultLevel(err)
		if !s.log.Enabled(context.Background(), level) {
			return
		}
		if dropped, ok := flood.allow(); ok {
			s.log.Log(context.Background(), level, "control channel", "err", err, "dropped_before", dropped)
		}
	}
	if n := len(s.file.Trainers.AllowUIDs); n > 0 {
		c.AllowedUIDs = allowed(s.file.Trainers.AllowUIDs)
		c.Mode = 0o666 // the peer's uid is what is checked
	}
	return c
}

// State, Handovers and Ready make the Sidecar the admin API's Source.
func (s *Sidecar) State() any { return s.loop.view.read() }

// Handovers are the last ones, newest first.
func (s *Sidecar) Handovers() any { return s.loop.recent.newestFirst() }

// allowed adds the sidecar's own user and root to the config's.
func allowed(uids []int) []uint32 {
	own := []uint32{0, uint32(os.Getuid())}
	for _, u := range uids {
		own = append(own, uint32(u))
	}
	return own
}
