package sidecar

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
	"github.com/lull-project/lull/telemetry"
	"github.com/lull-project/lull/trainer"
)

var _ trainer.Handler = (*sessions)(nil)

// sender is what the loop needs of a session.
type sender interface {
	Send(m trainer.Message) error
	Close()
}

// trainerPeer is one trainer as the loop knows it; it outlives its session until
// the device shows its process gone.
type trainerPeer struct {
	id      handover.TrainerID
	session sender // nil once the connection ended
	process *device.Process
	gpu     *gpuDriver // that it is on; nil on host memory, which process has the bytes of
	claimed size.Bytes // held by its own word, as of its last hello or ack
	acks    int
	// wordAt is when it came or first answered its last order: a reading that began
	// before says nothing of what it did for it.
	wordAt    time.Time
	sent      handover.Epoch // of the last order
	answered  handover.Epoch // of the last order that it answered
	baseline  size.Bytes
	minBudget size.Bytes
	ordered   size.Bytes // the last order, or the ceiling that it came with
	ended     bool
	late      string // the order that it does not meet
	lateEpoch handover.Epoch
	trouble   string   // why its bytes cannot be read, "" when they can
	unsent    *limiter // of the lines about orders that did not go out
	hello     trainer.Hello
	report    *trainer.Report
}

// order sends a budget; without a session there is nobody to hear it, and the
// core counts the trainer's bytes until the device shows them gone.
func (t *trainerPeer) order(o handover.Order) error {
	if t.session == nil {
		return nil
	}
	t.ordered, t.sent = o.Bytes, o.Epoch
	return t.session.Send(trainer.Budget{Epoch: uint64(o.Epoch), Bytes: o.Bytes, Within: o.Within, Reason: o.Reason, Floor: o.Floor})
}

func (t *trainerPeer) refuseFloor(r handover.RefuseFloor) {
	if t.session != nil {
		_ = t.session.Send(trainer.Refused{Floor: r.Floor, Reason: "the device has no room for a higher floor"})
	}
}

// read is the device's word: the bytes of the process beyond its baseline.
func (t *trainerPeer) read() (size.Bytes, error) {
	if t.ended {
		return 0, device.ErrGone
	}
	b, err := t.process.Read()
	if err != nil {
		return 0, err
	}
	return max(0, b-t.baseline), nil
}

func (t *trainerPeer) close() { _ = t.process.Close() }

// pid is the kernel's number of the process; the trainer's own word may be
// another's.
func (t *trainerPeer) pid() int64 { return int64(t.process.PID()) }

// sessions turns what trainers say into inputs of the loop. Its methods run on
// the sessions' goroutines.
type sessions struct {
	loop    *loop
	log     *slog.Logger
	metrics *telemetry.Metrics
	devices map[handover.DeviceID]bool
	// capacity of each device.
	capacity map[handover.DeviceID]size.Bytes
	process  func(pid int) (*device.Process, error)
	gpus     map[handover.DeviceID]*gpuDriver

	once  sync.Once
	lines *limiter // of the log, made on first use
}

// linesPerSecond are those of the log about trainers that come and go, all of
// them together: one that connects again and again must not fill the disk.
const linesPerSecond = 20

// note logs a line about a trainer that came or went, or counts it.
func (s *sessions) note(level slog.Level, text string, args ...any) {
	s.once.Do(func() { s.lines = &limiter{most: linesPerSecond, every: time.Second, now: s.loop.clock} })
	if dropped, ok := s.lines.allow(); ok {
		s.log.Log(s.loop.ctx, level, text, append(args, "dropped_before", dropped)...)
	}
}

// place is the config's name of the device that a trainer says it is on. A
// process knows host memory as "cpu"; that is the one host device, where there
// is one. A GPU may be named by its UUID too.
func (s *sessions) place(said string) (id handover.DeviceID, ok bool) {
	if id := handover.DeviceID(said); s.devices[id] {
		return id, true
	}
	var fit []handover.DeviceID
	for id := range s.devices {
		if gpu := s.gpus[id]; gpu != nil && gpu.is(said) || gpu == nil && said == "cpu" {
			fit = append(fit, id)
		}
	}
	if len(fit) != 1 {
		return "", false
	}
	return fit[0], true
}

// unseen answers a hello of a process whose books are closed to us: another PID
// namespace, a TCP connection. The trainer stays at its min budget.
var unseen = trainer.ErrorLine{
	What: "hello", Where: "pid",
	Rule: "the sidecar cannot read this process's memory, want one in its own PID namespace; nothing is lent",
}

// unknown answers a hello from a device that has no books here.
func (s *sessions) unknown(said string) trainer.ErrorLine {
	var names []string
	for name := range s.devices {
		names = append(names, string(name))
	}
	slices.Sort(names)
	return trainer.ErrorLine{
		What: "hello", Where: "device",
		Rule: fmt.Sprintf("got %q, want a device of lull.yaml: %s; nothing is lent", said, strings.Join(names, ", ")),
	}
}

func (s *sessions) id(ses *trainer.Session) handover.TrainerID {
	return handover.TrainerID(ses.Key().String())
}

// Hello opens the process's books first: without them nothing that the trainer
// gives back could be confirmed.
func (s *sessions) Hello(ses *trainer.Session, h trainer.Hello) {
	id := s.id(ses)
	place, ok := s.place(h.Device)
	if !ok {
		s.note(slog.LevelWarn, "trainer is on a device that lull.yaml does not name; it keeps its own budget and nothing is lent to it; `python -m lull.doctor` in its environment says more", "trainer", id, "device", h.Device)
		_ = ses.Send(s.unknown(h.Device)) // one that does not hear it keeps to its min budget
		return
	}
	h.Device = string(place)
	s.clamp(&h)
	process, shown, err := s.open(ses.PID())
	if err != nil {
		s.note(slog.LevelWarn, "trainer's process cannot be read, so nothing that it gave back could be confirmed; nothing is lent to it. Let it share the sidecar's PID namespace (containers: pid:); `python -m lull.doctor` in its environment says more",
			"trainer", id, "pid", ses.PID(), "err", err)
		_ = ses.Send(unseen)
		return
	}
	h.Baseline = min(h.Baseline, shown) // nobody had more before it began than it has now
	gpu := s.gpus[place]
	if gpu != nil {
		h.Baseline = 0 // a context is no host memory; share learns it
	}
	s.refuseEpoch(ses, &h)
	s.note(slog.LevelInfo, "trainer connected", "trainer", id, "pid", ses.PID(), "floor", h.Floor, "floor_known", h.FloorKnown, "held", h.Held, "ceiling", h.Ceiling)
	s.loop.post(s.loop.ctx, input{
		do: func(l *loop) {
			peer := &trainerPeer{id: id, session: ses, process: process, gpu: gpu, claimed: h.Held, wordAt: l.clock(), baseline: h.Baseline, minBudget: h.MinBudget, ordered: h.Ceiling, hello: h}
			if old := l.trainers[id]; old != nil {
				peer.unsent = old.unsent // one that comes again and again fills no log either
				old.close()
			}
			l.trainers[id] = peer
		},
		event: func(at handover.At) handover.Event { return helloEvent(at, id, h) },
	})
	s.loop.post(s.loop.ctx, input{do: func(l *loop) {
		if t := l.trainers[id]; t != nil {
			l.readTrainer(t)
			l.drain()
		}
	}})
}

// open opens a process's books and says what they show now.
func (s *sessions) open(pid int) (*device.Process, size.Bytes, error) {
	process, err := s.process(pid)
	if err != nil {
		return nil, 0, err
	}
	shown, err := process.Read()
	if err != nil {
		_ = process.Close()
		return nil, 0, err
	}
	return process, shown, nil
}

// clamp keeps what a trainer says of itself within the device: no sum over
// trainers overflows, and a liar takes the device and no more. What it really
// holds is read from the kernel. The baseline is no part of the device's books
// and may be larger (data that were read before the job began): it has the
// kernel's own bound.
func (s *sessions) clamp(h *trainer.Hello) {
	for _, b := range []*size.Bytes{&h.Floor, &h.Ceiling, &h.Held, &h.MinBudget, &h.Suspended} {
		*b = s.within(h.Device, *b)
	}
}

// within is what a trainer says, and no more than its device has.
func (s *sessions) within(said string, b size.Bytes) size.Bytes {
	if place, ok := s.place(said); ok {
		return min(b, s.capacity[place])
	}
	return b
}

func helloEvent(at handover.At, id handover.TrainerID, h trainer.Hello) handover.Event {
	return handover.Hello{
		At: at, Trainer: id, Job: h.Job, Device: handover.DeviceID(h.Device), Floor: h.Floor, FloorKnown: h.FloorKnown,
		Ceiling: h.Ceiling, Held: h.Held, LastEpoch: handover.Epoch(h.LastEpoch), MinBudget: h.MinBudget, Suspended: h.Suspended,
	}
}

// Ack goes to the core with the trainer's own word; the device is asked next.
func (s *sessions) Ack(ses *trainer.Session, a trainer.Ack) {
	id := s.id(ses)
	a.Held = s.within(ses.Key().Device, a.Held)
	s.loop.post(s.loop.ctx, input{
		do: func(l *loop) {
			if t := l.trainers[id]; t != nil && t.session == sender(ses) {
				t.word(a, l.clock())
			}
			l.record(telemetry.Event{Kind: "ack", Owner: string(id), Epoch: a.Epoch, Bytes: int64(a.Held), How: a.How,
				TookUS: (a.Waited + a.Freed).Microseconds()})
		},
		event: func(at handover.At) handover.Event {
			return handover.Acked{At: at, Trainer: id, Epoch: handover.Epoch(a.Epoch), Held: a.Held, How: a.How}
		},
	})
}

// FloorRequest asks the core.
func (s *sessions) FloorRequest(ses *trainer.Session, r trainer.Request) {
	id := s.id(ses)
	floor := s.within(ses.Key().Device, r.Floor)
	s.loop.post(s.loop.ctx, input{event: func(at handover.At) handover.Event {
		return handover.FloorAsked{At: at, Trainer: id, Floor: floor}
	}})
}

// Report is kept for the admin API and metrics; it is advice. One of a trainer
// that does not count leaves nothing behind.
func (s *sessions) Report(ses *trainer.Session, r trainer.Report) {
	id, key := s.id(ses), ses.Key()
	s.loop.post(s.loop.ctx, input{do: func(l *loop) {
		if t := l.trainers[id]; t != nil && t.session == sender(ses) {
			s.metrics.TrainingSamples(key.Job, rankLabel(key.Rank), float64(r.Samples))
			t.report = &r
			l.step(ratedEvent(l.now(), id, r))
			l.view.publish(l)
		}
	}})
}

// Gone keeps the trainer until the device shows its bytes gone.
func (s *sessions) Gone(ses *trainer.Session, why trainer.Reason) {
	id := s.id(ses)
	s.note(slog.LevelInfo, "trainer gone", "trainer", id, "why", why)
	gone := false
	s.loop.post(s.loop.ctx, input{
		do: func(l *loop) {
			if t := l.trainers[id]; t != nil && t.session == sender(ses) {
				t.session, gone = nil, true
				s.metrics.ForgetTraining(t.hello.Job, rankLabel(t.hello.Rank))
			}
		},
		event: func(at handover.At) handover.Event {
			if !gone {
				return handover.Tick{At: at} // a newer session has taken its place
			}
			return handover.TrainerGone{At: at, Trainer: id, Left: why == trainer.GoneBye}
		},
	})
	s.loop.post(s.loop.ctx, input{do: func(l *loop) {
		if t := l.trainers[id]; t != nil && gone {
			l.readTrainer(t)
			l.drain()
		}
	}})
}
