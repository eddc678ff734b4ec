package sidecar

import (
	"context"
	"time"

	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
)

const (
	// probeEvery and probeLimit space and end the readings that time an idle
	// engine's first block.
	probeEvery = time.Millisecond
	probeLimit = 100 * time.Millisecond
	// probeApart keeps the readings from being a load of their own.
	probeApart = 2 * time.Second
)

// sentToIdle asks for a probe: a request has just been forwarded to an engine
// that had none. It never waits.
func (e *engineDriver) sentToIdle(at time.Time) {
	select {
	case e.probes <- at:
	default:
	}
}

// probeIdle serves sentToIdle; it ends when ctx does.
func (e *engineDriver) probeIdle(ctx context.Context) {
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case sent := <-e.probes:
			if can := e.engine.Capabilities(); can.Bound && !can.Whole && sent.Sub(last) >= probeApart {
				last = sent
				e.probe(ctx, sent)
			}
		}
	}
}

// probe reads the engine until it shows a block, and tells the core how long
// that took: the time in which a handover costs a request nothing.
func (e *engineDriver) probe(ctx context.Context, sent time.Time) {
	idle := size.Bytes(e.needed.Load()) // a prefix cache holds blocks that nobody needs
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for e.loop.clock().Sub(sent) < probeLimit {
		s, err := e.engine.Observe(ctx)
		if err != nil {
			return
		}
		if s.Needed > idle {
			delay := s.At.Sub(sent)
			e.loop.post(ctx, input{event: func(at handover.At) handover.Event {
				return handover.AllocDelaySeen{At: at, Engine: e.id, Delay: delay}
			}})
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
