package engine

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/lull-project/lull/size"
)

// SetBound orders a bound and waits until the engine has confirmed it, or has
// done what it can for now: with more in use than the bound, Held stays above it
// until requests end, and nothing new is allocated. Bound is above the order when
// a live request needs more than it.
func (e *lullVLLM) SetBound(ctx context.Context, epoch uint64, b size.Bytes) (Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.Timeout)
	defer cancel()
	if err := e.send(epoch, b); err != nil {
		return Sample{}, fmt.Errorf("engine %s: set bound epoch=%d to %v: %w", e.cfg.Name, epoch, b, err)
	}
	// The engine answers within a step; a step is milliseconds, so the first
	// looks are close together and later ones cost little.
	wait := 50 * time.Microsecond
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		s, done, err := e.answer(epoch, b)
		if err != nil {
			return s, fmt.Errorf("engine %s: set bound epoch=%d to %v: %w", e.cfg.Name, epoch, b, err)
		}
		if done {
			return s, nil
		}
		select {
		case <-ctx.Done():
			return s, fmt.Errorf("engine %s: set bound epoch=%d to %v: held %v after the wait; the order stands: %w", e.cfg.Name, epoch, b, s.Held, ctx.Err())
		case <-timer.C:
		}
		wait = min(2*wait, 2*time.Millisecond)
		timer.Reset(wait)
	}
}

// send writes the order and rings.
func (e *lullVLLM) send(epoch uint64, b size.Bytes) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	w, err := e.words()
	if err != nil {
		return err
	}
	if err := refusal(w, epoch, b); err != nil {
		return err
	}
	if err := e.takeOrderPage(); err != nil {
		return err
	}
	e.order.words[boundEpoch], e.order.words[boundBytes] = epoch, uint64(b/e.devices(w))
	if err := e.sign(w[wordInstance]); err != nil {
		return err
	}
	e.beatAt = e.cfg.Now()
	ring(e.base+".bell", bellBound)
	return nil
}

// refusal says why an order cannot be sent.
func refusal(w []uint64, epoch uint64, b size.Bytes) error {
	switch {
	case w[wordMode] == modeTelemetry:
		return fmt.Errorf("the plugin sets no bound on this engine; its log says why")
	case w[wordFlags]&flagBroken != 0:
		return fmt.Errorf("the plugin met an error and froze; its log says which")
	case b < 0:
		return fmt.Errorf("want at least 0 bytes")
	case epoch < w[wordRequestedEpoch]:
		return fmt.Errorf("%w; the engine has %d and keeps its bound", ErrStaleEpoch, w[wordRequestedEpoch])
	}
	return nil
}

// answer reads how far the engine is with an order; done says that waiting longer
// is for the caller to decide.
func (e *lullVLLM) answer(epoch uint64, b size.Bytes) (s Sample, done bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w, err := e.words()
	if err != nil {
		return Sample{}, false, err
	}
	s = e.sample(w)
	switch requested := w[wordRequestedEpoch]; {
	case requested > epoch:
		return s, false, fmt.Errorf("%w; the engine has %d and keeps its bound", ErrStaleEpoch, requested)
	case w[wordFlags]&flagBroken != 0:
		return s, false, fmt.Errorf("the plugin met an error and froze; its log says which")
	case requested < epoch:
		return s, false, nil
	case size.Bytes(w[wordRequestedBytes]) != b/e.devices(w):
		return s, false, fmt.Errorf("%w; the engine has %v of this epoch and keeps it", ErrStaleEpoch, size.Bytes(w[wordRequestedBytes])*e.devices(w))
	}
	return s, w[wordConfirmedEpoch] == epoch || w[wordBlocksPending] == 0, nil
}

// sign writes the order page with a new beat; mu is held.
func (e *lullVLLM) sign(instance uint64) error {
	if err := e.takeOrderPage(); err != nil {
		return err
	}
	w := e.order.words
	w[boundInstance], w[boundLeaseUS], w[boundSidecarPID] = instance, uint64(vllmLease.Microseconds()), uint64(os.Getpid())
	w[boundBeats]++
	return e.order.write()
}

func (e *lullVLLM) takeOrderPage() (err error) {
	if e.order == nil {
		e.order, err = openBoundPage(e.base + ".bound")
	}
	return err
}
