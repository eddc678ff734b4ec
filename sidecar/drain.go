package sidecar

import (
	"context"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/proxy"
	"github.com/lull-project/lull/trainer"
)

const (
	// idleLook is how often a drain looks whether the last request has ended.
	idleLook = 10 * time.Millisecond
	// cutGrace is what a cut leaves for answering 503 and for closing accounts.
	cutGrace = time.Second
	// tellLimit bounds the wait for the loop to have told the trainers.
	tellLimit = time.Second
)

// hurry ends a drain before its time.
type hurry struct {
	ctx context.Context
	now context.CancelFunc
}

func newHurry() hurry {
	ctx, now := context.WithCancel(context.Background())
	return hurry{ctx, now}
}

// Hurry cuts at once what a drain still waits for. Harmless when repeated; called
// before the drain begins, it leaves it no time.
func (s *Sidecar) Hurry() { s.hurry.now() }

// drain turns new requests away, lets those under way finish within limit or
// until hurry ends, and cuts what is left.
func (v *servers) drain(limit time.Duration, hurry context.Context) error {
	ctx, stop := context.WithTimeout(hurry, limit)
	defer stop()
	v.log.Info("draining: new requests are turned away, open ones may finish", "within", limit, "open", v.open())
	v.front.set(v.path.Draining(time.Now().Add(limit)))
	if v.untilIdle(ctx) {
		// What still has a connection now has a refusal to read, or nothing at all: one
		// that never sent a byte is no reason to stay.
		ctx, stop := context.WithTimeout(ctx, cutGrace)
		defer stop()
		if err := v.data.Shutdown(ctx); err != nil {
			_ = v.data.Close()
		}
	} else {
		v.cutOpen(limit, hurry.Err() != nil)
	}
	err := v.operator.Close()
	v.path.Close()
	v.wg.Wait()
	return err
}

// cutOpen ends what is open, so that its client sees it.
func (v *servers) cutOpen(limit time.Duration, hurried bool) {
	v.log.Warn("open requests are cut", "open", v.open(), "limit", limit, "hurried", hurried)
	v.cut(proxy.ErrCut)
	for range 2 { // those that wait for their upstream end at once, the others with their connection
		ctx, stop := context.WithTimeout(context.Background(), cutGrace)
		idle := v.untilIdle(ctx)
		if idle { // the last answers are being written
			_ = v.data.Shutdown(ctx)
		}
		stop()
		_ = v.data.Close()
		if idle {
			return
		}
	}
	v.log.Warn("requests did not end when their connections were closed", "open", v.open())
}

// open is how many requests are being served, upgraded connections included.
func (v *servers) open() int64 {
	s := v.path.Stats()
	return s.InFlight + s.Passing
}

// untilIdle waits until nothing is being served; false says that ctx ended before.
func (v *servers) untilIdle(ctx context.Context) bool {
	tick := time.NewTicker(idleLook)
	defer tick.Stop()
	for v.open() > 0 {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// tellTrainers asks every connected trainer to checkpoint and leave, if that is the
// config's word. They are told on the loop, after what it has told them before.
func (s *Sidecar) tellTrainers(ctx context.Context, word string) {
	if word != config.OnStopDrain {
		return
	}
	ctx, stop := context.WithTimeout(ctx, tellLimit)
	defer stop()
	told := make(chan struct{})
	s.loop.post(ctx, input{do: func(l *loop) {
		defer close(told)
		for _, t := range l.trainers {
			l.tellToLeave(t)
		}
	}})
	select {
	case <-told:
	case <-ctx.Done():
		s.log.Warn("trainers not told to leave: the loop did not answer; they keep their grants for the lease", "after", tellLimit)
	}
}

func (l *loop) tellToLeave(t *trainerPeer) {
	if t.session == nil {
		return
	}
	if err := t.session.Send(trainer.Drain{Reason: "shutdown"}); err != nil {
		l.log.Warn("trainer not told to leave; it keeps its grant for the lease", "trainer", t.id, "err", err)
		return
	}
	l.log.Info("trainer told to checkpoint and leave", "trainer", t.id)
}
