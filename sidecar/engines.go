package sidecar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lull-project/lull/endpoint"
	"github.com/lull-project/lull/engine"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
	"github.com/lull-project/lull/telemetry"
)

// missesForDown is how many unanswered readings in a row make an engine down; a
// refused connection makes it so at once.
const missesForDown = 3

// doorbell is an engine that says by itself when an allocation fell short.
type doorbell interface{ Shortages() <-chan struct{} }

// engineDriver observes one engine and sets its bound. Three goroutines of it run
// beside the loop: neither a bound nor a doorbell waits for a reading.
type engineDriver struct {
	id      handover.EngineID
	devices []handover.DeviceID
	engine  engine.Engine
	loop    *loop
	log     *slog.Logger
	truth   *residency
	busy    func() bool
	every   cadence
	doubt   string            // what the config wants of it and it has not
	models  bool              // of its are engines of their own
	server  handover.EngineID // of a model: the server that has it
	scale   *residency        // of a model: its server's

	probes chan time.Time // a request went to the idle engine then
	bounds chan struct{}  // wakes the bounder
	mu     sync.Mutex
	wanted *handover.SetBound // newest wins
	unset  *limiter           // of the log, the bounder's own

	up     bool
	dead   bool // it is down, and nobody listens at its address
	misses int
	pid    int
	needed atomic.Int64 // bytes, as last read
}

// cadence is the interval of readings.
type cadence struct{ busy, idle time.Duration }

// cadenceOf follows what a reading costs and how fresh it can be: a bound that
// moves is watched closely, a /metrics page lags by its own scrape anyway.
func cadenceOf(c engine.Capabilities) cadence {
	if c.Bound && !c.Whole {
		return cadence{busy: 20 * time.Millisecond, idle: time.Second}
	}
	return cadence{busy: 250 * time.Millisecond, idle: time.Second}
}

// observe ends when ctx does.
func (e *engineDriver) observe(ctx context.Context) {
	var rings <-chan struct{}
	if d, ok := e.engine.(doorbell); ok {
		rings = d.Shortages()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-rings:
		}
		e.look(ctx)
		wait := e.every.idle
		if e.busy() {
			wait = e.every.busy
		}
		timer.Reset(wait)
	}
}

func (e *engineDriver) look(ctx context.Context) {
	sample, err := e.engine.Observe(ctx)
	if err != nil {
		e.missed(ctx, err)
		return
	}
	if e.up && e.pid != 0 && sample.PID != 0 && sample.PID != e.pid {
		e.down(ctx, true) // it died and came back between two readings
	}
	e.misses = 0
	if sample.PID != 0 {
		e.pid = sample.PID
	}
	if !e.up {
		e.back(ctx)
	}
	e.needed.Store(int64(sample.Needed))
	seen := seenEvent(e.id, sample, e.truth.resident(ctx, e.engine, sample))
	absent := e.truth.absent
	e.loop.post(ctx, input{do: func(l *loop) {
		l.view.engine(e.id, sample, "")
		e.sayAbsent(l, absent)
	}, event: seen})
}

// sayAbsent names the process of an engine that its GPU does not list: its bytes
// count as somebody else's there, and nobody sees its weights.
func (e *engineDriver) sayAbsent(l *loop, pid int) {
	about := "engine " + string(e.id) + " process"
	if pid == 0 {
		l.view.clearProblem(about)
		return
	}
	l.view.problem(about, fmt.Sprintf("NVML lists no process of pid %d or below it on its GPU: it may be on another, or in a container whose pids differ (engines[].pid names the right one); its bytes there count as others'", pid))
}

func seenEvent(id handover.EngineID, s engine.Sample, resident size.Bytes) func(handover.At) handover.Event {
	return func(at handover.At) handover.Event {
		return handover.EngineSeen{
			At: at, Engine: id, Held: s.Held, Evictable: s.Evictable, Bound: s.Bound, BoundEpoch: handover.Epoch(s.BoundEpoch), Needed: s.Needed,
			Cached: s.Cached, PrefixQueries: s.PrefixQueries, PrefixHits: s.PrefixHits,
			Resident: resident, Running: s.Running, Waiting: s.Waiting, Short: s.Short,
		}
	}
}

// missed counts a reading that failed. An engine that answers what cannot be
// read stays up: inference is untouched, nothing is decided on it, and training
// does not grow beside it.
func (e *engineDriver) missed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	e.misses++
	e.loop.post(ctx, input{
		do: func(l *loop) { l.view.engine(e.id, engine.Sample{}, err.Error()) },
		event: func(at handover.At) handover.Event {
			return handover.EngineUnread{At: at, Engine: e.id}
		},
	})
	unreachable := errors.Is(err, engine.ErrUnreachable) || errors.Is(err, engine.ErrNotReady)
	dead := endpoint.NobodyListens(err)
	switch {
	case e.up && unreachable && (e.misses >= missesForDown || dead):
		e.log.Warn("engine is down; training makes room for its start", "engine", e.id, "err", err)
		e.down(ctx, dead)
	case !e.up && dead && !e.dead: // what did not answer has ended
		e.down(ctx, dead)
	}
}

// back tells the core that the engine answers.
func (e *engineDriver) back(ctx context.Context) {
	e.up, e.dead = true, false
	e.say(ctx, func(at handover.At) handover.Event { return handover.EngineUp{At: at, Engine: e.id} })
}

// down tells it that the engine does not, and whether its process is gone.
func (e *engineDriver) down(ctx context.Context, dead bool) {
	e.up, e.dead = false, dead
	e.say(ctx, func(at handover.At) handover.Event { return handover.EngineDown{At: at, Engine: e.id, Dead: dead} })
}

func (e *engineDriver) say(ctx context.Context, event func(handover.At) handover.Event) {
	e.truth.forget()
	e.log.Info("engine", "engine", e.id, "up", e.up, "dead", e.dead, "pid", e.pid)
	e.loop.post(ctx, input{event: event})
}

// setBound leaves the newest bound for the bounder; it never waits.
func (e *engineDriver) setBound(b handover.SetBound) {
	e.mu.Lock()
	e.wanted = &b
	e.mu.Unlock()
	select {
	case e.bounds <- struct{}{}:
	default:
	}
}

// bound ends when ctx does.
func (e *engineDriver) bound(ctx context.Context) {
	bounder, ok := e.engine.(engine.Bounder)
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.bounds:
		}
		e.mu.Lock()
		b := e.wanted
		e.wanted = nil
		e.mu.Unlock()
		if b == nil || !ok {
			continue
		}
		e.send(ctx, bounder, *b)
	}
}

func (e *engineDriver) send(ctx context.Context, bounder engine.Bounder, b handover.SetBound) {
	before := e.weigh(ctx)
	sample, err := bounder.SetBound(ctx, uint64(b.Epoch), b.Bytes)
	if ctx.Err() != nil {
		return
	}
	about := "engines " + string(e.id) + " bound"
	if err != nil {
		if e.unset == nil {
			e.unset = &limiter{most: 1, every: 10 * time.Second, now: e.loop.clock}
		}
		if dropped, ok := e.unset.allow(); ok {
			e.log.Warn("bound not set; the engine's last bound counts on", "engine", e.id, "epoch", b.Epoch, "bound", b.Bytes, "err", err, "dropped_before", dropped)
		}
		e.loop.post(ctx, input{do: func(l *loop) {
			if b.Bytes == 0 || e.server != "" { // it does not go, or not come: nothing else shows that
				l.view.problem(about, err.Error())
			}
		}, event: func(at handover.At) handover.Event {
			return handover.BoundFailed{At: at, Engine: e.id, Epoch: b.Epoch}
		}})
		return
	}
	heavier := e.heavier(sample, before, e.weigh(ctx))
	e.loop.post(ctx, input{
		do: func(l *loop) {
			if b.Reason != handover.ReasonUndo { // which leaves what was wrong as it is
				l.view.clearProblem(about)
			}
			if heavier != "" {
				l.view.problem("engines "+string(e.id)+" bytes", heavier)
			}
			l.record(telemetry.Event{Kind: "bound_set", Owner: string(e.id), Epoch: uint64(b.Epoch), Bytes: int64(sample.Bound), From: int64(sample.Held)})
		},
		event: func(at handover.At) handover.Event {
			return handover.BoundSet{At: at, Engine: e.id, Epoch: b.Epoch, Bound: sample.Bound, Held: sample.Held}
		},
	})
}
