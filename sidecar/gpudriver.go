package sidecar

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
)

const (
	// gpuEvery is the longest between two readings; trainers' orders ask for more.
	gpuEvery = time.Second
	// gpuLate is when a driver counts as one that does not answer.
	gpuLate = 2 * time.Second
)

var errGPULate = errors.New("none in " + gpuLate.String())

// gpuDriver reads one GPU for the loop. A driver takes milliseconds to answer, and a
// broken one forever, so the loop never waits for a reading: who wants one rings.
type gpuDriver struct {
	id    handover.DeviceID
	gpu   gpu
	facts device.Facts
	cfg   config.Device
	loop  *loop
	log   *slog.Logger
	rings chan struct{}

	// The loop's.
	share    share
	capacity size.Bytes // as the core was told last
	trouble  string     // why it cannot be read, "" when it can
	faults   map[string]int
	flood    *limiter // of lines about faults
	unwatch  string   // why faults are not watched
}

// gpuSeen is a reading and whose each process is.
type gpuSeen struct {
	began   time.Time // before the driver was asked
	reading device.Reading
	// above has each listed process's ancestors, itself first.
	above map[int][]int
}

func newGPUDriver(l *loop, d config.Device, g foundGPU) *gpuDriver {
	return &gpuDriver{
		id: handover.DeviceID(d.ID), gpu: g.gpu, facts: g.gpu.Facts(), cfg: d, loop: l, log: l.log, rings: make(chan struct{}, 1),
		share: share{slop: d.Headroom / 2}, capacity: d.Capacity, faults: map[string]int{},
		flood: &limiter{most: 10, every: time.Second, now: l.clock},
	}
}

// ring asks for a reading that begins after now; it never waits.
func (d *gpuDriver) ring() {
	select {
	case d.rings <- struct{}{}:
	default: // one that has not begun is asked for already
	}
}

// run reads until ctx ends.
func (d *gpuDriver) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-d.rings:
		}
		d.look(ctx)
		timer.Reset(gpuEvery)
	}
}

func (d *gpuDriver) look(ctx context.Context) {
	began := d.loop.clock()
	timed, cancel := context.WithTimeoutCause(ctx, gpuLate, errGPULate)
	r, err := d.gpu.Read(timed)
	cancel()
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		d.loop.post(ctx, input{do: func(l *loop) { d.missed(l, err) }})
		return
	}
	seen := see(r, began)
	d.loop.post(ctx, input{do: func(l *loop) { d.take(l, seen) }})
}

func see(r device.Reading, began time.Time) *gpuSeen {
	seen := &gpuSeen{began: began, reading: r, above: map[int][]int{}}
	for pid := range r.Processes {
		seen.above[pid] = device.Ancestors(pid)
	}
	return seen
}

// watch counts faults until ctx ends.
func (d *gpuDriver) watch(ctx context.Context) {
	err := d.gpu.Watch(ctx, func(f device.Fault) {
		d.loop.post(ctx, input{do: func(l *loop) { d.fault(l, f) }})
		d.ring()
	})
	if err != nil && ctx.Err() == nil {
		d.log.Warn("the GPU's faults are not watched", "device", d.id, "err", err)
		d.loop.post(ctx, input{do: func(*loop) { d.unwatch = err.Error() }})
	}
}

// freshWithin is how long an engine's own observer waits for a reading: one takes
// milliseconds, and a driver that hangs must not make its samples old.
const freshWithin = 100 * time.Millisecond

var errNotFresh = errors.New("none in " + freshWithin.String())

// tree is what a process and those below it hold, by a reading that begins now: an
// older one may still show KV that has been given back since.
func (d *gpuDriver) tree(ctx context.Context, pid int) (size.Bytes, error) {
	timed, cancel := context.WithTimeoutCause(ctx, freshWithin, errNotFresh)
	defer cancel()
	began := d.loop.clock()
	r, err := d.gpu.Read(timed)
	if err != nil {
		return 0, err
	}
	return see(r, began).tree(pid)
}

// tree wraps device.ErrUnreadable where the reading cannot say.
func (s *gpuSeen) tree(pid int) (size.Bytes, error) {
	if _, err := s.reading.Process(pid); err != nil {
		return 0, err
	}
	var sum size.Bytes
	for below, b := range s.reading.Processes {
		if slices.Contains(s.above[below], pid) {
			sum += b
		}
	}
	for _, below := range s.reading.Unread {
		if slices.Contains(device.Ancestors(below), pid) {
			_, err := s.reading.Process(below)
			return 0, err
		}
	}
	return sum, nil
}

// is says that a trainer's word for its device can only mean this one: its UUID, or
// PyTorch's name on a machine with one GPU. With more of them cuda:0 may be any:
// CUDA_VISIBLE_DEVICES is the job's own.
func (d *gpuDriver) is(said string) bool {
	return said == d.facts.UUID || d.facts.Alone && (said == "cuda" || said == "cuda:0")
}
