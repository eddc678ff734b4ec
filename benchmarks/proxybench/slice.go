package proxybench

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// overtime is how long after its slice an arm may still begin requests that
// waited for a connection, in slices.
const overtime = 1

// tally is what one arm did in slices or in a race, untrimmed.
type tally struct {
	arm
	// sent counts requests that began, and failed those of them without a whole
	// answer; fault is the first one's reason.
	sent, failed int
	fault        string
	// queued counts requests that were due while every connection was busy: their
	// time runs from when they were due. unsent were never begun.
	queued, unsent int
	// busy is the time from the first request to the last answer.
	busy time.Duration
}

func (t *tally) add(o *tally) {
	t.first, t.later = append(t.first, o.first...), append(t.later, o.later...)
	t.sent, t.failed, t.queued, t.unsent = t.sent+o.sent, t.failed+o.failed, t.queued+o.queued, t.unsent+o.unsent
	t.busy += o.busy
	if t.fault == "" {
		t.fault = o.fault
	}
}

// reached is the rate of whole answers, requests a second.
func (t *tally) reached() float64 {
	if t.busy <= 0 {
		return 0
	}
	return float64(len(t.first)) / t.busy.Seconds()
}

// arrivals are the times at which requests are due: independent of each other,
// as many clients' are, at rate a second over d. The same seed gives the same
// times, so that all arms of a round take the same load.
func arrivals(seed uint64, rate float64, d time.Duration) []time.Duration {
	src := rand.New(rand.NewPCG(seed, 0))
	var due []time.Duration
	for at := src.ExpFloat64() / rate; at < d.Seconds(); at += src.ExpFloat64() / rate {
		due = append(due, time.Duration(at*float64(time.Second)))
	}
	return due
}

// slice sends requests when they are due, whatever became of those before.
func slice(ctx context.Context, to target, connections int, due []time.Duration, d time.Duration) (*tally, error) {
	var next atomic.Int64
	began := time.Time{}
	take := func() (start time.Time, wait, more bool) {
		i := int(next.Add(1)) - 1
		if i >= len(due) || time.Since(began) > (1+overtime)*d {
			return time.Time{}, false, false
		}
		return began.Add(due[i]), true, true
	}
	all, err := drive(ctx, to, connections, &began, take)
	if all != nil {
		all.unsent = len(due) - all.sent
	}
	return all, err
}

// race sends each connection's next request when the last one is answered, for d:
// what the arm can carry with so many clients.
func race(ctx context.Context, to target, connections int, d time.Duration) (*tally, error) {
	began := time.Time{}
	return drive(ctx, to, connections, &began, func() (start time.Time, wait, more bool) {
		now := time.Now()
		return now, false, now.Sub(began) < d
	})
}

// drive opens the connections, sends a request on each that is not counted, and
// then the requests that take gives: when they are due, if wait. An error is the
// context's or that of an arm which answers nobody.
func drive(ctx context.Context, to target, connections int, began *time.Time, take func() (time.Time, bool, bool)) (*tally, error) {
	conns := make([]*conn, connections)
	errs := make([]error, connections)
	each(connections, func(i int) {
		if conns[i], errs[i] = dial(ctx, to); errs[i] == nil {
			_, errs[i] = conns[i].call(time.Now(), nil)
		}
	})
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.close()
			}
		}
	}()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	*began = time.Now()
	parts := make([]tally, connections)
	ends := make([]time.Time, connections)
	each(connections, func(i int) {
		conns[i] = parts[i].work(ctx, to, conns[i], take)
		ends[i] = time.Now()
	})
	all := &tally{}
	for i := range parts {
		all.add(&parts[i])
		all.busy = max(all.busy, ends[i].Sub(*began))
	}
	return all, ctx.Err()
}

// each runs f for 0 to n-1 at once and waits.
func each(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) }) // ends with f
	}
	all.Wait()
}

// work sends one connection's requests until there are none, the context ends or
// the arm cannot be dialled; it returns the connection in use.
func (t *tally) work(ctx context.Context, to target, c *conn, take func() (time.Time, bool, bool)) *conn {
	for {
		start, wait, more := take()
		if !more {
			return c
		}
		if now := time.Now(); wait && start.After(now) {
			if pause(ctx, start.Sub(now)) != nil {
				return c
			}
			start = time.Now() // what the timer is late is the client's own
		} else if wait {
			t.queued++
		}
		t.sent++
		got, err := c.call(start, t.later)
		if err == nil {
			t.first, t.later = append(t.first, got.first), got.later
			continue
		}
		t.later = got.later[:len(t.later)]
		t.failed++
		if t.fault == "" {
			t.fault = err.Error()
		}
		c.close()
		if c, err = dial(ctx, to); err != nil {
			return nil
		}
	}
}
