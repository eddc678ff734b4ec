package demo

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// progress is what the live table shows of a running load.
type progress struct {
	sent, done, failed atomic.Int64
}

// replay sends reqs at their times from start and waits for every answer, at
// most drainLimit after the last send. Results are in the order of reqs; the
// requests that were not sent when ctx ended are left out.
func replay(ctx context.Context, c *client, reqs []Request, start time.Time, p *progress) []Result {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	schedule := make([]time.Duration, len(reqs))
	for i, r := range reqs {
		schedule[i] = r.At
	}
	results := make([]Result, len(reqs))
	var wg sync.WaitGroup
	sent := 0
	for {
		wait, done := nextSend(schedule, sent, time.Since(start))
		if done || !sleep(ctx, wait) {
			break
		}
		i := sent
		// Each sender ends with its answer or with ctx; replay waits for all.
		wg.Go(func() {
			results[i] = c.send(ctx, reqs[i], start.Add(schedule[i]), false)
			p.done.Add(1)
			if results[i].Err != nil {
				p.failed.Add(1)
			}
		})
		sent++
		p.sent.Add(1)
	}
	drained := time.AfterFunc(drainLimit, cancel)
	defer drained.Stop()
	wg.Wait()
	return results[:sent]
}

// sleep waits for d, or answers false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
