package sidecar

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/telemetry"
)

// input is one thing handed to the loop: do runs on the loop's goroutine before
// the event is stepped; either may be absent.
type input struct {
	do    func(l *loop)
	event func(at handover.At) handover.Event
}

// inputQueue holds bursts: a few hundred requests that arrive at once, each with
// an arrival and an end.
const inputQueue = 4096

// progressBatch bounds the counts of one event, so that no step takes longer than
// another may wait.
const progressBatch = 128

// loop owns the core. Its fields are touched by its goroutine only, but for
// inputs and those of shared.
type loop struct {
	ctx     context.Context // ends with the sidecar
	clock   func() time.Time
	start   time.Time
	inputs  chan input
	log     *slog.Logger
	metrics *telemetry.Metrics
	events  *telemetry.Events

	core     *handover.Handover // nil until assembled, and after a failure
	pace     pace
	compute  *compute
	pricing  *pricing
	requests *requests
	engines  map[handover.EngineID]*engineDriver
	trainers map[handover.TrainerID]*trainerPeer
	recent   *history
	wakeAt   handover.At
	pending  []handover.Event // answers of inline actions, stepped in order
	flag     *atomic.Bool     // busy, for the drivers
	lent     *atomic.Bool     // there is a core to ask, for the gate
	view     *view
}

// now is the offset from the start, on the monotonic clock.
func (l *loop) now() handover.At { return l.clock().Sub(l.start) }

// post hands an input over. It gives up when ctx ends.
func (l *loop) post(ctx context.Context, in input) bool {
	select {
	case l.inputs <- in:
		return true
	case <-ctx.Done():
		return false
	}
}

// run ends when ctx does.
func (l *loop) run(ctx context.Context) {
	timer := time.NewTimer(l.pace.idle)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case in := <-l.inputs:
			l.take(in)
		case <-timer.C:
			l.tick()
		}
		timer.Reset(l.untilNext())
	}
}

func (l *loop) take(in input) {
	if in.do != nil {
		in.do(l)
	}
	if in.event != nil {
		l.step(in.event(l.now()))
	}
	l.flag.Store(l.busy())
}

// step feeds one event to the core and performs its actions, and then those of
// the events that the actions answered at once.
func (l *loop) step(ev handover.Event) {
	l.pending = append(l.pending, ev)
	l.drain()
}

// drain steps what is pending. Without a core there is nobody to tell.
func (l *loop) drain() {
	if l.core == nil {
		l.pending = nil
		return
	}
	if len(l.pending) == 0 {
		return
	}
	for len(l.pending) > 0 {
		next := l.pending[0]
		l.pending = l.pending[1:]
		actions, ok := l.ask(next)
		if !ok {
			return
		}
		for _, a := range actions {
			l.perform(a)
		}
	}
	l.view.publish(l)
}

// ask steps the core and catches a broken invariant: from then on nobody asks
// it again, and inference goes on without it.
func (l *loop) ask(ev handover.Event) (actions []handover.Action, ok bool) {
	defer func() {
		if p := recover(); p != nil {
			l.log.Error("the core broke an invariant; requests pass unguarded and training is held at its least",
				"panic", fmt.Sprint(p), "event", fmt.Sprintf("%T %+v", ev, ev), "stack", string(debug.Stack()))
			l.fail()
			actions, ok = nil, false
		}
	}()
	return l.core.Step(ev), true
}

// fail is the way out of a broken core: release everybody, hold training down.
func (l *loop) fail() {
	l.metrics.CoreFailed()
	epoch := l.view.lastEpoch()
	l.core, l.pending = nil, nil
	l.lent.Store(false)
	for id := range l.requests.held() {
		l.requests.resolve(id, verdict{forward: true, outcome: handover.OutcomeForwardedUnconfirmed})
	}
	for _, t := range l.trainers {
		epoch++
		least := min(t.minBudget, t.ordered) // never a rise: nobody keeps the ledger any more
		if err := t.order(handover.Order{Epoch: epoch, Bytes: least, Reason: "core_failed", Shrink: true}); err != nil {
			l.log.Warn("trainer not told to its least; it keeps its last grant", "trainer", t.id, "err", err)
		}
	}
	l.view.publish(l)
}

// tick reads what moved by itself: trainers' bytes, tokens of running requests,
// time.
func (l *loop) tick() {
	at := l.now()
	if l.pace.progressDue(at, l.requests.live()) {
		for part := range slices.Chunk(l.requests.progress(), progressBatch) {
			l.step(handover.Progressed{At: l.now(), Counts: part})
		}
	}
	if l.pace.trainersDue(at, l.busy()) {
		l.readTrainers()
	}
	if l.compute.due(l.now(), l.requests.live()) {
		l.advise()
	}
	l.tellPrices()
	if l.wakeAt > 0 && l.now() >= l.wakeAt {
		l.wakeAt = 0
		l.step(handover.Tick{At: l.now()})
	}
	l.flag.Store(l.busy())
	l.view.publish(l)
}

// busy says that memory may move soon: requests run or a handover is under way.
func (l *loop) busy() bool { return l.requests.live() > 0 || l.wakeAt > 0 }

func (l *loop) untilNext() time.Duration {
	at := l.now()
	next := l.pace.next(at, l.requests.live(), l.busy())
	if l.compute.active() && (l.requests.live() > 0 || l.compute.said != advice{duty: 1}) {
		next = min(next, l.compute.lastAt+computeEvery-at)
	}
	if l.wakeAt > 0 && l.wakeAt-at < next {
		next = l.wakeAt - at
	}
	return max(next, 50*time.Microsecond)
}
