package emulator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lull-project/lull/emulator/memory"
	"github.com/lull-project/lull/emulator/model"
)

// engine runs the model against the wall clock and has its pages made real. The
// fields up to times belong to the goroutine of run.
type engine struct {
	model    *model.Model
	geometry geometry
	streams  map[uint64]*stream // by request id
	epoch    uint64             // of the bound in force
	times    *times

	kv       *kv
	commands chan command
	done     chan struct{} // closed when run has returned
	began    time.Time
	sleep    func(time.Duration)

	mu    sync.Mutex
	state State // what others may know; guarded by mu
}

func newEngine(cfg Config, pool *memory.Pool, base State, t *times) (*engine, error) {
	mc, err := cfg.modelConfig()
	if err != nil {
		return nil, err
	}
	m, err := model.New(mc, cfg.Seed)
	if err != nil {
		return nil, fmt.Errorf("emulate: %w", err)
	}
	g := cfg.geometry()
	e := &engine{
		model: m, kv: newKV(pool, g.pages, g.memoryPages()), geometry: g,
		streams: make(map[uint64]*stream), times: t,
		commands: make(chan command, 256), done: make(chan struct{}),
		began: time.Now(), sleep: sleepFine, state: base,
	}
	e.publish()
	return e, nil
}

// now is the time since the engine began, the model's time.
func (e *engine) now() time.Duration { return time.Since(e.began) }

// run is the engine. It returns nil when ctx ends, and an error when memory
// could not be had: then nothing that it says could be trusted any more.
func (e *engine) run(ctx context.Context) error {
	defer close(e.done)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mapper sync.WaitGroup
	var mapErr error
	mapper.Go(func() {
		defer cancel()
		mapErr = e.kv.run(ctx)
	})
	err := e.loop(ctx)
	cancel()
	mapper.Wait()
	if err := errors.Join(err, mapErr); err != nil {
		return fmt.Errorf("emulate: engine: %w; the server ends", err)
	}
	return nil
}

func (e *engine) loop(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		if err := e.obeyAll(); err != nil {
			return err
		}
		at, ok := e.model.NextAt()
		now := e.now()
		if ok && at <= now {
			e.times.late.Observe((now - at).Seconds())
			events := e.model.Step(now)
			e.publish()
			if err := e.book(events, false); err != nil {
				return err
			}
			continue
		}
		if err := e.wait(ctx, timer, at, ok); err != nil {
			return err
		}
	}
	return nil
}

// obeyAll books the commands that have come.
func (e *engine) obeyAll() error {
	for {
		select {
		case c := <-e.commands:
			if err := e.obey(c); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// wait returns when there may be something to do.
func (e *engine) wait(ctx context.Context, timer *time.Timer, at time.Duration, ok bool) error {
	d := time.Hour
	if ok {
		d = at - e.now()
	}
	if d <= fine {
		if d > 0 {
			e.sleep(d)
		}
		return nil
	}
	timer.Reset(d - fine)
	select {
	case c := <-e.commands:
		return e.obey(c)
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil
}

// book tells clients of their tokens and has memory follow. With drop the
// events are of a request that was aborted.
func (e *engine) book(events []model.Event, drop bool) error {
	var preempted uint64
	for _, ev := range events {
		s := e.streams[ev.ID]
		switch ev.Kind {
		case model.Preempted:
			preempted = ev.ID
		case model.Map:
			e.kv.mapPage(ev.Page, s)
		case model.Unmap:
			// Ids begin at 1, so nobody is preempted by mistake.
			if err := e.kv.unmapPage(ev.Page, s, drop || ev.ID == preempted); err != nil {
				return err
			}
		case model.Token:
			e.token(s, ev)
		}
	}
	return nil
}

func (e *engine) token(s *stream, ev model.Event) {
	if s == nil {
		return
	}
	e.times.token(s, ev)
	if ev.Reason != model.Unfinished {
		delete(e.streams, ev.ID)
	}
	e.kv.tell(s, ev.N, ev.Reason)
}
