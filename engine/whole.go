package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lull-project/lull/size"
)

const (
	// poolMoves is the longest that a whole pool may take to go or to come back.
	// Shorter takes a large one for stuck, longer keeps a request waiting for a
	// server that hangs.
	poolMoves = time.Minute
	// poolRests is how long a server that did not let its pool go is not asked again:
	// each try holds up what comes meanwhile by some milliseconds, and a device that
	// cannot do it never will.
	poolRests = 30 * time.Second
)

// wholeMover is a server whose pool goes whole or not at all.
type wholeMover interface {
	Name() string
	// look reads it without a care for who moves the pool.
	look(ctx context.Context) (Sample, error)
	// tidy mends, before a reading, what an order has left behind.
	tidy(ctx context.Context) error
	// letGo and restore move the pool; they do nothing where it is so already.
	letGo(ctx context.Context) error
	restore(ctx context.Context) error
	// undo has the server go on with a pool that was said to be gone and is not.
	undo(ctx context.Context) error
}

// wholePool is the book of such a pool. A bound of 0 lets the pool go, any other
// has it all.
type wholePool struct {
	now    func() time.Time
	moving sync.Mutex // held while the pool goes or comes back

	mu    sync.Mutex
	epoch uint64 // of the last order that it obeyed
	let   bool   // that order let the pool go
	kept  error  // why the pool did not go, until then
	then  time.Time
}

// obeyed is the order that it obeyed last.
func (p *wholePool) obeyed() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.epoch
}

// shown is the order that a pool which is gone, or there, follows; 0 where it is so
// by nobody's order: the server restarted, or somebody else moved it.
func (p *wholePool) shown(gone bool) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.let != gone {
		return 0
	}
	return p.epoch
}

// observe is Observe. While the pool moves it only reads: what it sees then may be of
// before, and is told as of the order before.
func (p *wholePool) observe(ctx context.Context, m wholeMover) (Sample, error) {
	before := p.obeyed()
	if !p.moving.TryLock() {
		s, err := m.look(ctx)
		s.BoundEpoch = before
		return s, err
	}
	defer p.moving.Unlock()
	if err := m.tidy(ctx); err != nil {
		return Sample{}, err
	}
	return m.look(ctx)
}

// order is SetBound.
func (p *wholePool) order(ctx context.Context, m wholeMover, epoch uint64, b size.Bytes) (Sample, error) {
	p.moving.Lock()
	defer p.moving.Unlock()
	if epoch < p.obeyed() {
		return Sample{}, fmt.Errorf("engine %s: set bound epoch=%d to %v: %w; the engine keeps its bound", m.Name(), epoch, b, ErrStaleEpoch)
	}
	move := m.restore
	if b == 0 {
		move = func(ctx context.Context) error { return p.release(ctx, m) }
	}
	if err := move(ctx); err != nil {
		return Sample{}, fmt.Errorf("set bound epoch=%d to %v: %w", epoch, b, err)
	}
	p.mu.Lock()
	p.epoch, p.let = epoch, b == 0
	p.mu.Unlock()
	s, err := m.look(ctx)
	if err != nil {
		return Sample{}, fmt.Errorf("set bound epoch=%d to %v: %w", epoch, b, err)
	}
	if gone := s.Held == 0; gone != (b == 0) {
		err = fmt.Errorf("engine %s: set bound epoch=%d to %v: it agreed, and then showed %v held; its pool counts as held", m.Name(), epoch, b, s.Held)
		if b == 0 {
			err = errors.Join(err, m.undo(ctx))
		}
		return Sample{}, err
	}
	return s, nil
}

// release lets the pool go, unless the server has lately refused that.
func (p *wholePool) release(ctx context.Context, m wholeMover) error {
	p.mu.Lock()
	kept, rests := p.kept, p.now().Before(p.then)
	p.mu.Unlock()
	if rests {
		return fmt.Errorf("not tried again within %v: %w", poolRests, kept)
	}
	err := m.letGo(ctx)
	if err != nil {
		p.mu.Lock()
		p.kept, p.then = err, p.now().Add(poolRests)
		p.mu.Unlock()
	}
	return err
}
