package sidecar

import (
	"errors"
	"time"

	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/telemetry"
)

// perform turns one action into a call. Calls that may take long run elsewhere
// and answer with an input; reading a trainer's bytes takes microseconds and is
// answered at once.
func (l *loop) perform(a handover.Action) {
	switch a := a.(type) {
	case handover.Order:
		l.performOrder(a)
	case handover.SetBound:
		l.performBound(a)
	case handover.ReadTrainer:
		if t := l.trainers[a.Trainer]; t != nil {
			l.readTrainer(t)
		}
	case handover.Hold:
		l.record(telemetry.Event{Kind: "hold", ID: string(a.ID), Stage: a.Stage.String()})
		l.requests.park(a.ID)
	case handover.Release:
		l.record(telemetry.Event{Kind: "release", ID: string(a.ID), Outcome: string(a.Outcome)})
		l.probeIfAlone(a.ID)
		l.requests.resolve(a.ID, verdict{forward: true, outcome: a.Outcome})
	case handover.Reject:
		l.record(telemetry.Event{Kind: "reject", ID: string(a.ID), Outcome: string(a.Outcome)})
		l.requests.resolve(a.ID, verdict{outcome: a.Outcome, retryAfter: a.RetryAfter})
	case handover.RefuseFloor:
		if t := l.trainers[a.Trainer]; t != nil {
			t.refuseFloor(a)
		}
	case handover.Wake:
		l.wakeAt = a.At
	case handover.HandoverDone:
		l.performDone(a)
	}
}

// probeIfAlone times the first block of a request that nobody else shares the
// engines with.
func (l *loop) probeIfAlone(id handover.RequestID) {
	if l.requests.live() != 1 {
		return
	}
	if req := l.requests.get(id); req != nil && l.engines[req.engine] != nil {
		l.engines[req.engine].sentToIdle(l.clock())
	}
}

func (l *loop) performOrder(o handover.Order) {
	l.view.sawEpoch(o.Epoch)
	l.record(telemetry.Event{Kind: "order", Owner: string(o.Trainer), Epoch: uint64(o.Epoch), Bytes: int64(o.Bytes), Shrink: o.Shrink, Reason: o.Reason, Stage: o.Stage.String()})
	t := l.trainers[o.Trainer]
	if t == nil {
		return
	}
	if err := t.order(o); err != nil {
		l.notSent(t, o, err)
	}
}

// notSent logs an order that did not go out, at most once a second a trainer: one
// that does not read its socket is sent many.
func (l *loop) notSent(t *trainerPeer, o handover.Order, err error) {
	if t.unsent == nil {
		t.unsent = &limiter{most: 1, every: time.Second, now: l.clock}
	}
	if dropped, ok := t.unsent.allow(); ok {
		l.log.Warn("order not sent; the core waits for an ack that will not come until the trainer is back",
			"trainer", o.Trainer, "epoch", o.Epoch, "err", err, "dropped_before", dropped)
	}
}

func (l *loop) performBound(b handover.SetBound) {
	l.view.sawEpoch(b.Epoch)
	l.record(telemetry.Event{Kind: "bound", Owner: string(b.Engine), Epoch: uint64(b.Epoch), Bytes: int64(b.Bytes), Reason: b.Reason})
	if e := l.engines[b.Engine]; e != nil {
		e.setBound(b)
	}
}

func (l *loop) performDone(d handover.HandoverDone) {
	ended, direction := d.Confirmed, "grow"
	if d.Shrink {
		direction = "shrink"
	}
	if ended == 0 {
		ended = d.Acked
	}
	var took, acked time.Duration
	if ended > 0 {
		took = ended - d.Decided
	}
	if d.Acked > 0 {
		acked = d.Acked - d.Decided
	}
	l.metrics.Handover(d.Shrink, d.Result, d.How, took, int64(d.Freed))
	if s := d.Stage; s.Engine != "" {
		l.metrics.StageShrink(string(s.Engine), s.Stage)
	}
	l.recent.add(Handover{
		Epoch: d.Epoch.String(), Trainer: string(d.Trainer), Direction: direction, Reason: d.Reason, Stage: d.Stage.String(), How: d.How, Result: d.Result,
		FromBytes: int64(d.From), ToBytes: int64(d.To), FreedBytes: int64(d.Freed),
		AckedUS: acked.Microseconds(), TookUS: took.Microseconds(), At: l.start.Add(d.Decided),
	})
	l.record(telemetry.Event{
		Kind: "handover", Owner: string(d.Trainer), Epoch: uint64(d.Epoch), Bytes: int64(d.To), From: int64(d.From), Freed: int64(d.Freed),
		Shrink: d.Shrink, Reason: d.Reason, Stage: d.Stage.String(), How: d.How, Result: d.Result, TookUS: took.Microseconds(), AckedUS: acked.Microseconds(),
	})
}

// record stamps an event with the time of day and queues it.
func (l *loop) record(ev telemetry.Event) {
	ev.T = l.clock().UnixMicro()
	l.events.Add(ev)
}

// readTrainer answers with the device's own word about a trainer. A process
// that has ended holds nothing.
// A GPU is asked for a reading that begins now, and answers later; one that was under
// way when the trainer answered confirms nothing.
func (l *loop) readTrainer(t *trainerPeer) {
	if t.gpu != nil && !t.ended {
		t.gpu.ring()
		return
	}
	b, err := t.read()
	switch {
	case errors.Is(err, device.ErrGone):
		b = 0
		t.ended = true
	case err != nil:
		t.trouble = err.Error() + "; nothing that it gives back is used"
		return
	}
	t.trouble = ""
	l.pending = append(l.pending, handover.TrainerSeen{At: l.now(), Trainer: t.id, Bytes: b})
}

// readTrainers reads all of them and forgets those that left for good.
func (l *loop) readTrainers() {
	for id, t := range l.trainers {
		l.readTrainer(t)
		if t.ended && t.session == nil {
			t.close()
			delete(l.trainers, id)
			l.metrics.ForgetTrainer(t.hello.Device, string(id), t.hello.Job, rankLabel(t.hello.Rank))
		}
	}
	l.drain()
}
