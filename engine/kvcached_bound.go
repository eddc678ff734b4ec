package engine

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lull-project/lull/size"
)

// SetBound writes the limit, within what the segment can say, and reads back what
// the engine holds. A higher limit is confirmed at once: the engine takes it up
// within its own 100 ms. A lower one is confirmed by what is seen when the engine
// must have looked (kvcachedSettle): Held may still be above it, and stays so
// until the engine next allocates or frees.
func (e *kvcached) SetBound(ctx context.Context, epoch uint64, b size.Bytes) (Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.Timeout)
	defer cancel()
	failed := func(err error) error {
		return fmt.Errorf("engine %s: set bound epoch=%d to %v: %w", e.name, epoch, b, err)
	}
	limit, wait, err := e.order(ctx, epoch, b)
	if err != nil {
		return Sample{}, failed(err)
	}
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return Sample{}, failed(fmt.Errorf("written, but the engine had no time to see it; the order stands: %w", ctx.Err()))
		case <-timer.C:
		}
	}
	e.mu.Lock()
	e.waited = epoch
	e.mu.Unlock()
	s, err := e.look(ctx)
	if err == nil && (s.Bound != limit || s.BoundEpoch != epoch) {
		err = fmt.Errorf("the segment says %v of epoch %d after the wait, want %v; somebody else wrote it, or the engine restarted", s.Bound, s.BoundEpoch, limit)
	}
	if err != nil {
		return s, failed(err)
	}
	return s, nil
}

// order writes the limit of an epoch and says how long the engine needs to see it.
func (e *kvcached) order(ctx context.Context, epoch uint64, b size.Bytes) (limit size.Bytes, wait time.Duration, err error) {
	if b < 0 {
		return 0, 0, fmt.Errorf("want at least 0 bytes")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	err = withSegment(ctx, e.cfg.Segment, unix.LOCK_EX, func(f *os.File, info segmentInfo) error {
		if err := e.left(info); err != nil {
			return err
		}
		e.follow(info, true)
		if err := e.refusal(epoch, b); err != nil {
			return err
		}
		before := e.note.Before
		if limit = e.note.Written; e.note.Epoch != epoch || limit == 0 {
			before, limit = size.Bytes(info.limit), e.note.clamp(b, e.pages.size())
			if e.disobeyed && limit < before {
				return fmt.Errorf("%s; nothing more is lent", e.disobedience(info.held()))
			}
			if err := e.write(f, info, epoch, b, limit); err != nil {
				return err
			}
		}
		if limit < before {
			wait = max(0, kvcachedSettle-e.now().Sub(e.orderedAt))
		}
		return nil
	})
	return limit, wait, err
}

// refusal says why an order is older than what stands; mu is held.
func (e *kvcached) refusal(epoch uint64, b size.Bytes) error {
	n := e.note
	switch {
	case epoch < n.Epoch:
		return fmt.Errorf("%w; the segment has %d and keeps its limit", ErrStaleEpoch, n.Epoch)
	case epoch == n.Epoch && n.Written > 0 && n.Asked != b:
		return fmt.Errorf("%w; the segment has %v of this epoch and keeps it", ErrStaleEpoch, n.Asked)
	}
	return nil
}

// write puts the note first: after a crash in between the segment still has the
// limit that the note calls Before.
func (e *kvcached) write(f *os.File, info segmentInfo, epoch uint64, b, limit size.Bytes) error {
	n := e.note.ordered(info, epoch, b, limit)
	if err := writeNote(e.cfg.Segment, n); err != nil {
		return fmt.Errorf("note: %w", err)
	}
	if err := writeLimit(f, limit); err != nil {
		return fmt.Errorf("segment %s: %w", e.cfg.Segment, err)
	}
	e.note, e.orderedAt = n, e.now()
	return nil
}
