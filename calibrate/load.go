package calibrate

import (
	"context"
	"fmt"
	"time"

	"github.com/lull-project/lull/engine"
)

const (
	// settle is how long a server may go on counting a request that has ended: it
	// publishes its counts now and then (llama.cpp's are read every 3 s at most).
	settle = 4 * time.Second
	// lookEvery is the pause between two looks.
	lookEvery = 25 * time.Millisecond
)

// Load is what was seen of other requests.
type Load struct {
	// Kind is the server's; Known is false for one that does not say what it runs.
	Kind  string
	Known bool
	// Looks is how often it was asked, Others the most requests that were running or
	// waiting beside ours.
	Looks, Others int
}

// watch asks the server how many requests it has.
type watch struct {
	engine engine.Engine
	load   Load
	settle time.Duration
	now    func() time.Time
}

func openWatch(ctx context.Context, up Config, settle time.Duration) (*watch, error) {
	cfg := engine.DefaultConfig()
	cfg.Name, cfg.URL, cfg.TLS, cfg.Key = "upstream", up.Upstream, up.TLS, up.Key
	if err := engine.NotLull(ctx, cfg); err != nil {
		return nil, fmt.Errorf("calibrate: --upstream: %w; nothing is measured", err)
	}
	e, err := engine.Open(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("calibrate: %w; nothing is measured", err)
	}
	can := e.Capabilities()
	return &watch{engine: e, load: Load{Kind: can.Kind, Known: can.ObserveLogical}, settle: settle, now: time.Now}, nil
}

func (w *watch) close() error { return engine.Close(w.engine) }

// look asks once; ours of the requests are not counted.
func (w *watch) look(ctx context.Context, ours int) (others int, err error) {
	s, err := w.engine.Observe(ctx)
	if err != nil {
		return 0, fmt.Errorf("calibrate: look at the server's load: %w; nothing is written", err)
	}
	w.load.Looks++
	return max(s.Running+s.Waiting-ours, 0), nil
}

// beside looks while one of ours runs.
func (w *watch) beside(ctx context.Context) error {
	if !w.load.Known {
		return nil
	}
	others, err := w.look(ctx, 1)
	w.load.Others = max(w.load.Others, others)
	return err
}

// idle waits until the server has no request, and notes those that do not go
// away. Once there were some, more is not learned by waiting.
func (w *watch) idle(ctx context.Context) error {
	if !w.load.Known || w.load.Others > 0 {
		return nil
	}
	for end := w.now().Add(w.settle); ; {
		others, err := w.look(ctx, 0)
		if err != nil || others == 0 {
			return err
		}
		if w.now().After(end) {
			w.load.Others = others
			return nil
		}
		if err := pause(ctx, lookEvery); err != nil {
			return err
		}
	}
}

// pause waits, or returns why not.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
