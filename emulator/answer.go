package emulator

import (
	"context"
	"errors"
	"net/http"

	"github.com/lull-project/lull/emulator/faults"
	"github.com/lull-project/lull/emulator/model"
)

// errEngineEnded cuts answers short when the engine is gone.
var errEngineEnded = errors.New("emulate: the engine has ended")

// answer is one request on its way: the engine's stream on one side, the
// client's connection on the other. It belongs to the client's goroutine.
type answer struct {
	*renderer
	ask    ask
	stream *stream
	engine *engine
	wire   *wire
	sink   faults.Sink // wire behind the faults
	apart  bool        // faults count events, so each is sent alone
	buf    []byte
	sent   int // tokens
}

// complete serves /v1/chat/completions and /v1/completions.
func (s *Server) complete(chat bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b, apiErr := readBody(w, r)
		if apiErr != nil {
			apiErr.write(w)
			return
		}
		a, apiErr := s.cfg.understand(b, chat)
		if apiErr != nil {
			apiErr.write(w)
			return
		}
		extra, err := faults.Parse(r.Header.Get("X-Lull-Fault"))
		if err != nil {
			badRequest("X-Lull-Fault", "%v", err).write(w)
			return
		}
		s.answer(w, r, a, append(s.faults[:len(s.faults):len(s.faults)], extra...))
	}
}

// answer queues the request, relays what the engine makes of it, and aborts it
// when the client does not take all of it.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, a ask, set faults.Set) {
	a.request.ID = s.requests.Add(1)
	st := newStream(a.request)
	out := &answer{
		renderer: newRenderer(a, s.answerID(r, a), s.created(), s.cfg.Model),
		ask:      a, stream: st, engine: s.engine,
		wire:  newWire(w, a.stream),
		apart: len(set) > 0,
	}
	out.sink = set.Wrap(out.wire)
	if !s.engine.submit(st) {
		engineError(errEngineEnded.Error()).write(w)
		return
	}
	err := out.relay(r.Context())
	if _, reason := st.read(); reason == model.Unfinished {
		s.engine.abort(st)
	}
	out.finish(err)
}

// relay sends the answer until it is whole or cannot go on.
func (a *answer) relay(ctx context.Context) error {
	if err := a.sink.Start(ctx); err != nil {
		return err
	}
	for {
		select {
		case <-a.stream.news:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-a.engine.done:
			return errEngineEnded
		}
		tokens, reason := a.stream.read()
		if err := a.catchUp(ctx, tokens, reason); err != nil {
			return err
		}
		if reason != model.Unfinished {
			return a.sink.End(ctx)
		}
	}
}

// catchUp sends what the engine has and the client has not, in one write where
// no fault needs the events apart.
func (a *answer) catchUp(ctx context.Context, tokens int, reason model.Reason) error {
	a.buf = a.buf[:0]
	if !a.ask.stream {
		if reason == model.Unfinished {
			return nil
		}
		a.sent, a.buf = tokens, a.appendWhole(a.buf, tokens, reason)
		a.wire.length = len(a.buf)
		return a.flush(ctx)
	}
	if a.sent == 0 && a.chat {
		if err := a.event(ctx, a.appendRole(a.buf)); err != nil {
			return err
		}
	}
	for a.sent < tokens {
		a.sent++
		last := model.Unfinished
		if a.sent == tokens {
			last = reason
		}
		if err := a.event(ctx, a.appendToken(a.buf, a.sent, last)); err != nil {
			return err
		}
	}
	return a.close(ctx, reason)
}

// close ends a stream whose last token was sent, and flushes any other.
func (a *answer) close(ctx context.Context, reason model.Reason) error {
	if reason != model.Unfinished {
		if a.options.IncludeUsage {
			if err := a.event(ctx, a.appendUsage(a.buf, a.sent)); err != nil {
				return err
			}
		}
		a.buf = appendDone(a.buf)
	}
	return a.flush(ctx)
}

// event takes the buffer with one event more.
func (a *answer) event(ctx context.Context, buf []byte) error {
	a.buf = buf
	if !a.apart {
		return nil
	}
	return a.flush(ctx)
}

func (a *answer) flush(ctx context.Context) error {
	if len(a.buf) == 0 {
		return nil
	}
	err := a.sink.Send(ctx, faults.Event{Tokens: a.sent, Bytes: a.buf})
	a.buf = a.buf[:0]
	return err
}

// finish tells the client of an end that is not a good one, as far as it can
// still be told: a cut transfer, a reset, or an error.
func (a *answer) finish(err error) {
	switch {
	case err == nil:
	case errors.Is(err, faults.ErrEngine):
		a.wire.fail(engineError(err.Error()))
	case errors.Is(err, faults.ErrReset):
		a.wire.reset()
	default:
		// A broken transfer must look broken: net/http cuts it for this panic, and
		// only for this one without a log line.
		panic(http.ErrAbortHandler)
	}
}
