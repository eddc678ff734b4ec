package calibrate

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lull-project/lull/engine"
)

// scripted is an engine that says one number of running requests after another,
// and the last one for ever.
type scripted struct {
	running []int
	err     error
}

func (s *scripted) Name() string { return "scripted" }
func (s *scripted) Capabilities() engine.Capabilities {
	return engine.Capabilities{ObserveLogical: true}
}

func (s *scripted) Observe(context.Context) (engine.Sample, error) {
	n := s.running[0]
	if len(s.running) > 1 {
		s.running = s.running[1:]
	}
	return engine.Sample{Running: n}, s.err
}

func watching(running ...int) *watch {
	return &watch{engine: &scripted{running: running}, load: Load{Known: true}, settle: settle, now: time.Now}
}

func TestEndedRequestThatIsStillCountedForAWhileIsNoLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watching(1, 1, 1, 0)
		if err := w.idle(t.Context()); err != nil || w.load != (Load{Known: true, Looks: 4}) {
			t.Errorf("got %+v, %v, want four looks and no other request", w.load, err)
		}
	})
}

func TestRequestsThatDoNotGoAwayAreLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, begin := watching(2), time.Now()
		if err := w.idle(t.Context()); err != nil || w.load.Others != 2 {
			t.Errorf("got %+v, %v, want 2 others", w.load, err)
		}
		if took := time.Since(begin); took < settle || took > settle+2*lookEvery {
			t.Errorf("gave up after %v, want %v", took, settle)
		}
		looks := w.load.Looks
		if err := w.idle(t.Context()); err != nil || w.load.Looks != looks {
			t.Errorf("looked again, %+v, %v: the server is known to be loaded", w.load, err)
		}
	})
}

func TestOnlyRequestsBesideOursCountWhileOneRuns(t *testing.T) {
	w := watching(1, 4)
	for _, want := range []int{0, 3} {
		if err := w.beside(t.Context()); err != nil || w.load.Others != want {
			t.Errorf("got %+v, %v, want %d others", w.load, err, want)
		}
	}
}

func TestServerThatSaysNothingIsNotAsked(t *testing.T) {
	w := watching(5)
	w.load.Known = false
	if err := errors.Join(w.idle(t.Context()), w.beside(t.Context())); err != nil || w.load.Looks != 0 {
		t.Errorf("got %+v, %v, want no look", w.load, err)
	}
}

func TestLookThatFindsNothingToReadIsAnError(t *testing.T) {
	w := watching(0)
	w.engine.(*scripted).err = errors.New("engine x: gone")
	if err := w.idle(t.Context()); err == nil || err.Error() != "calibrate: look at the server's load: engine x: gone; nothing is written" {
		t.Errorf("got %v, want what was looked for", err)
	}
}

func TestCallerThatLeavesEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*ms)
		defer cancel()
		if err := watching(1).idle(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the caller's own end", err)
		}
	})
}
