package emulator

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/lull-project/lull/emulator/memory"
	"github.com/lull-project/lull/emulator/model"
)

// engine runs the model against the wall clock and makes its pages real. All
// fields up to commands belong to the goroutine of run.
type engine struct {
	model    *model.Model
	kv       kv
	geometry geometry
	streams  map[uint64]*stream // by request id
	epoch    uint64             // of the bound in force
	times    *times

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
		model: m, kv: kv{pool: pool, perPage: g.memoryPages()}, geometry: g,
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
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		if err := e.obeyAll(); err != nil {
			return fmt.Errorf("emulate: engine: %w", err)
		}
		if !e.kv.idle() {
			if err := e.perform(); err != nil {
				return fmt.Errorf("emulate: engine: %w; the server ends", err)
			}
			continue
		}
		at, ok := e.model.NextAt()
		if now := e.now(); ok && at <= now {
			e.times.late.Observe((now - at).Seconds())
			e.book(e.model.Step(now))
			e.publish()
			continue
		}
		if err := e.wait(ctx, timer, at, ok); err != nil {
			return fmt.Errorf("emulate: engine: %w", err)
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

// book tells clients of their tokens and notes what is to be done to memory.
func (e *engine) book(events []model.Event) {
	for _, ev := range events {
		switch ev.Kind {
		case model.Map, model.Unmap:
			e.kv.add(deed{kind: ev.Kind, page: ev.Page})
		case model.Token:
			e.token(ev)
		}
	}
}

func (e *engine) token(ev model.Event) {
	s := e.streams[ev.ID]
	if s == nil {
		return
	}
	e.times.token(s, ev)
	if ev.Reason == model.Unfinished {
		s.advance(ev.N, ev.Reason)
		return
	}
	delete(e.streams, ev.ID)
	e.kv.add(deed{kind: model.Token, stream: s, tokens: ev.N, reason: ev.Reason})
}

// perform does the next deed to memory.
func (e *engine) perform() error {
	d, err := e.kv.next()
	if err != nil {
		return err
	}
	if d.kind == model.Token || e.kv.idle() {
		e.publish()
	}
	if d.kind == model.Token {
		d.stream.advance(d.tokens, d.reason)
	}
	return nil
}
