package emulator

import (
	"context"
	"time"

	"github.com/lull-project/lull/size"
)

type commandKind uint8

const (
	submitCommand commandKind = iota + 1
	abortCommand
	boundCommand
)

// command is what other goroutines ask of the engine. It carries the time when
// it was asked, which is the time at which the model books it.
type command struct {
	kind   commandKind
	at     time.Duration
	stream *stream
	epoch  uint64
	bound  size.Bytes
	reply  chan boundReply // holds one
}

// boundReply is the bound in force after a boundCommand, which an older epoch
// does not change.
type boundReply struct {
	Epoch uint64     `json:"epoch"`
	Bound size.Bytes `json:"bound_bytes"`
	Held  size.Bytes `json:"held_bytes"`
	older bool
}

// submit hands a request to the engine; false when the engine has ended.
func (e *engine) submit(s *stream) bool {
	s.arrived = e.now()
	return e.send(command{kind: submitCommand, at: s.arrived, stream: s})
}

// abort ends the request, if it lives, and frees its memory.
func (e *engine) abort(s *stream) {
	e.send(command{kind: abortCommand, at: e.now(), stream: s})
}

// setBound moves the bound and returns what is in force then.
func (e *engine) setBound(ctx context.Context, epoch uint64, bound size.Bytes) (boundReply, bool) {
	c := command{kind: boundCommand, at: e.now(), epoch: epoch, bound: bound, reply: make(chan boundReply, 1)}
	if !e.send(c) {
		return boundReply{}, false
	}
	select {
	case r := <-c.reply:
		return r, true
	case <-e.done:
	case <-ctx.Done():
	}
	return boundReply{}, false
}

// send is false when the engine has ended. A command that it takes to its end
// unread changes nothing: whoever waits for the answer sees done closed.
func (e *engine) send(c command) bool {
	select {
	case <-e.done:
		return false
	default:
	}
	select {
	case e.commands <- c:
		return true
	case <-e.done:
		return false
	}
}

// obey books one command. It runs on the engine's goroutine.
func (e *engine) obey(c command) error {
	switch c.kind {
	case submitCommand:
		if err := e.model.Submit(c.at, c.stream.request); err != nil {
			return err
		}
		e.streams[c.stream.request.ID] = c.stream
		e.publish()
	case abortCommand:
		delete(e.streams, c.stream.request.ID)
		events := e.model.Abort(c.at, c.stream.request.ID)
		e.publish()
		return e.book(events, true)
	case boundCommand:
		c.reply <- e.obeyBound(c)
	}
	return nil
}

func (e *engine) obeyBound(c command) boundReply {
	older := c.epoch < e.epoch
	if !older {
		e.epoch = c.epoch
		e.model.SetBound(c.at, e.geometry.boundPages(c.bound))
	}
	e.publish()
	st := e.State()
	return boundReply{Epoch: e.epoch, Bound: st.Bound, Held: st.Held, older: older}
}
