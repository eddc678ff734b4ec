package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lull-project/lull/endpoint"
)

// kvcachedServer is the server's part of a reading.
type kvcachedServer struct {
	at                               time.Time
	running, waiting                 int
	preemptions                      uint64
	prefixQueries, prefixHits        uint64
	tokens, blockTokens, maxModelLen int
}

// askServer reads the server's metrics unless they are fresh; readMu is held.
func (e *kvcached) askServer(ctx context.Context) error {
	now := e.now()
	if !e.served.at.IsZero() && now.Sub(e.served.at) < kvcachedQuiet {
		return nil
	}
	e.renew()
	used := e.used(ctx) // before the server says whether anybody uses it
	f, err := e.metrics(ctx, vllmUsage, vllmUsageOld, vllmRunning, vllmWaiting, vllmPreemptions, vllmCache, vllmPrompt, vllmPrefixes, sglangPrefix)
	if err != nil {
		e.missed(err)
		return err
	}
	srv, err := e.readServer(f)
	if err != nil {
		return fmt.Errorf("engine %s: %s/metrics: %w", e.name, e.base, err)
	}
	srv.at = now
	if srv.maxModelLen == 0 {
		srv.maxModelLen = e.length.of(ctx, e.client)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.served = srv
	if srv.running+srv.waiting == 0 {
		e.idleUsed = used
	}
	return nil
}

// readServer takes vLLM's metrics or SGLang's.
func (e *kvcached) readServer(f families) (srv kvcachedServer, err error) {
	var s Sample
	switch {
	case len(f[vllmRunning].GetMetric()) > 0:
		srv.tokens = vllmPool(&s, f.labels(vllmCache))
		if err = errors.Join(vllmQueue(&s, f), vllmPrefixCounts(&s, f)); err == nil {
			err = e.same(vllmIdentity(f))
		}
	case len(f[sglangRunning].GetMetric()) > 0:
		if srv.tokens, err = sglangSample(&s, f); err == nil {
			err = e.prefixes.counts(&s, f)
		}
		if err == nil {
			err = e.same(sglangIdentity(f))
		}
	default:
		err = fmt.Errorf("got neither %s nor %s, want the metrics of vLLM or SGLang; SGLang needs --enable-metrics", vllmRunning, sglangRunning)
	}
	srv.prefixQueries, srv.prefixHits = s.PrefixQueries, s.PrefixHits
	srv.running, srv.waiting, srv.preemptions, srv.blockTokens, srv.maxModelLen = s.Running, s.Waiting, s.Preemptions, s.BlockTokens, s.MaxModelLen
	return srv, err
}

// same notes whose metrics they are.
func (e *kvcached) same(id identity) error {
	other, err := e.twins.see(id, e.now())
	if other {
		e.length.forget()
	}
	return err
}

// used is what the segment says to be in use now, 0 where it cannot be read.
func (e *kvcached) used(ctx context.Context) (used int64) {
	_ = withSegment(ctx, e.cfg.Segment, unix.LOCK_SH, func(_ *os.File, info segmentInfo) error {
		used = info.used
		return nil
	})
	return used
}

// missed takes note of a server that is gone: its successor begins anew, perhaps
// in the same file and with another limit.
func (e *kvcached) missed(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.served = kvcachedServer{}
	if !endpoint.NobodyListens(err) {
		return // busy servers time out as well
	}
	e.length.forget()
	e.twins.forget()
	if e.note.Inode == 0 {
		return
	}
	e.lost, e.note, e.orderedAt = e.note, limitNote{}, time.Time{}
	_ = os.Remove(notePath(e.cfg.Segment))
}
