package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lull-project/lull/size"
)

func TestKvcachedSampleIsTheSegmentsBytesAndTheServersRequests(t *testing.T) {
	r := newKVRig(t)
	p := startKVPeer(t, r.segment, kvPool)
	p.Do("alloc 3", "ok")
	r.running.Store(2)
	got := observe(t, r.e)
	want := Sample{
		At: r.now, Held: 3 * kvPage, Needed: 3 * kvPage, Bound: kvPool, Pool: kvPool, PoolTokens: 8192, UsageFrac: 3.0 / 16, Running: 2,
		Preemptions: 2, BytesPerToken: kvPool / 8192, BlockTokens: 16, MaxModelLen: 2048,
	}
	if got != want {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	p.Do("free 1", "ok") // stays mapped, ahead of use
	r.running.Store(0)
	r.later()
	if got := observe(t, r.e); got.Held != 3*kvPage || got.Needed != 0 || got.Evictable != 3*kvPage {
		t.Errorf("idle: held %v, needed %v, evictable %v, want 3 pages that nobody needs", got.Held, got.Needed, got.Evictable)
	}
	p.Do("alloc 4", "ok") // a request that the last reading of the server did not know
	if got := observe(t, r.e); got.Needed != 4*kvPage {
		t.Errorf("a new request: needed %v, want its 4 pages", got.Needed)
	}
	if c := r.e.Capabilities(); !c.Bound || c.Reclaim || c.Static || !c.ObservePhysical || c.Kind != KindKvcached {
		t.Errorf("capabilities %+v, want a bound that reclaims nothing by itself", c)
	}
}

func TestKvcachedLimitIsConfirmedWhenTheEngineMustHaveSeenIt(t *testing.T) {
	r := newKVRig(t)
	p := startKVPeer(t, r.segment, kvPool)
	p.Do("alloc 2", "ok")
	began := time.Now()
	s := r.bound(t, 1<<32|1, 4*kvPage)
	if took := time.Since(began); took < kvcachedSettle {
		t.Errorf("confirmed after %v, want at least %v: the engine looks every 100 ms and says nothing", took, kvcachedSettle)
	}
	if s.Bound != 4*kvPage || s.BoundEpoch != 1<<32|1 || s.Held != 2*kvPage {
		t.Errorf("got bound %v of epoch %d, held %v, want 4 pages, the epoch and 2 pages", s.Bound, s.BoundEpoch, s.Held)
	}
	p.Do("alloc 3", "short") // beyond the limit, at once after the confirmation
	least := time.Hour
	for i := range uint64(5) { // a busy machine may be slow at any of them
		began = time.Now()
		if s = r.bound(t, 1<<32|(2+i), size.Bytes(5+i)*kvPage); s.Bound <= size.Bytes(4+i)*kvPage {
			t.Errorf("raised: bound %v, want it higher than %d pages", s.Bound, 4+i)
		}
		least = min(least, time.Since(began))
	}
	if least > kvcachedSettle/2 {
		t.Errorf("a higher limit took at least %v, want no wait", least)
	}
	if s = r.bound(t, 1<<32|7, kvPool); s.Bound != kvPool-1 {
		t.Errorf("raised: bound %d, want one byte below the beginning", s.Bound)
	}
	if s := observe(t, r.e); s.BoundEpoch != 1<<32|7 {
		t.Errorf("epoch %d, want the last order's", s.BoundEpoch)
	}
}

func TestKvcachedShowsALowerLimitOnlyWhenTheEngineMustHaveSeenIt(t *testing.T) {
	r := newKVRig(t)
	startKVMapped(t, r.segment, kvPool)
	observe(t, r.e)
	for _, c := range []struct {
		epoch        uint64
		ask          size.Bytes
		before       size.Bytes
		beforesEpoch uint64
	}{{7, 4 * kvPage, kvPool, 1}, {8, 2 * kvPage, 4 * kvPage, 7}} {
		if _, wait, err := r.e.order(t.Context(), c.epoch, c.ask); err != nil || wait != kvcachedSettle {
			t.Fatalf("order: wait %v, error %v, want %v", wait, err, kvcachedSettle)
		}
		if s := observe(t, r.e); s.Bound != c.before || s.BoundEpoch != c.beforesEpoch {
			t.Errorf("at once: bound %v of epoch %d, want %v of %d: it may still map that", s.Bound, s.BoundEpoch, c.before, c.beforesEpoch)
		}
		r.now = r.now.Add(kvcachedSettle)
		if s := observe(t, r.e); s.Bound != c.ask || s.BoundEpoch != c.epoch {
			t.Errorf("settled: bound %v of epoch %d, want %v of %d", s.Bound, s.BoundEpoch, c.ask, c.epoch)
		}
	}
	if _, wait, err := r.e.order(t.Context(), 9, 8*kvPage); err != nil || wait != 0 {
		t.Fatalf("raised: wait %v, error %v, want none", wait, err)
	}
	if s := observe(t, r.e); s.Bound != 8*kvPage || s.BoundEpoch != 9 {
		t.Errorf("raised: bound %v of epoch %d, want it at once", s.Bound, s.BoundEpoch)
	}
}

func TestKvcachedReportsUseAboveTheLimit(t *testing.T) {
	r := newKVRig(t)
	p := startKVMapped(t, r.segment, kvPool)
	observe(t, r.e)
	p.Do("alloc 5", "ok")
	if s := r.bound(t, 1, 2*kvPage); s.Bound != 2*kvPage || s.Held != 6*kvPage {
		t.Errorf("got bound %v, held %v, want 6 pages above a bound of 2", s.Bound, s.Held)
	}
	r.later()
	p.Do("alloc 1", "short")
	p.Do("free 5", "ok")
	if s := observe(t, r.e); s.Held > 2*kvPage+2*kvPage || s.Note != "" {
		t.Errorf("freed: held %v, note %q, want at most the bound and what is kept mapped", s.Held, s.Note)
	}
}

func TestKvcachedWritesNothingButTheLimitWhileTheEngineWrites(t *testing.T) {
	const rounds, orders = 20_000, 400
	r := newKVRig(t)
	p := startKVPeer(t, r.segment, kvPool)
	allowed := map[string]bool{strconv.Itoa(int(kvPool)): true}
	p.Say(fmt.Sprintf("spin %d", rounds))
	for i := range orders {
		ask := size.Bytes(1+i%10) * kvPage
		limit, _, err := r.e.order(t.Context(), uint64(i+1), ask)
		if err != nil {
			t.Fatal(err)
		}
		allowed[strconv.Itoa(int(limit))] = true
		err = withSegment(t.Context(), r.segment, unix.LOCK_SH, func(_ *os.File, s segmentInfo) error {
			if size.Bytes(s.limit) != limit {
				t.Fatalf("order %d: read back %d, want %v: the engine's write took it away", i+1, s.limit, limit)
			}
			if s.held()%kvPage != 0 || s.held() > 8*kvPage {
				t.Fatalf("order %d: held %d, want whole pages, at most 8: half of a write was read", i+1, s.held())
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	met := strings.Fields(strings.TrimPrefix(p.Hear(), "ok "))
	for _, m := range met {
		if !allowed[m] {
			t.Errorf("the engine met the limit %s, which nobody wrote", m)
		}
	}
	t.Logf("the engine met %d limits in %d writes", len(met), rounds)
	if s := observe(t, r.e); s.Held != 0 {
		t.Errorf("held %v at the end, want the engine's own 0", s.Held)
	}
}

func TestKvcachedRestartInTheSameFileIsSeen(t *testing.T) {
	for name, pool := range map[string]size.Bytes{"as large": kvPool, "smaller": kvPool / 2, "larger": 2 * kvPool} {
		t.Run(name, func(t *testing.T) {
			r := newKVRig(t)
			p := startKVMapped(t, r.segment, kvPool)
			r.bound(t, 7, 4*kvPage)
			p.Crash()
			r.stop()
			r.later()
			if _, err := r.e.Observe(t.Context()); !errors.Is(err, ErrUnreachable) {
				t.Fatalf("server gone: error %v, want ErrUnreachable", err)
			}
			startKVPeer(t, r.segment, pool)
			r.start()
			r.later()
			if s := observe(t, r.e); s.Bound != pool || s.Pool != pool || s.BoundEpoch != 0 {
				t.Errorf("bound %v, pool %v, epoch %d, want %v by nobody's order", s.Bound, s.Pool, s.BoundEpoch, pool)
			}
			if s := r.bound(t, 8, 80*size.GiB); s.Bound != pool-1 {
				t.Errorf("bound %d, want one byte below the new beginning %d", s.Bound, pool)
			}
		})
	}
}

func TestKvcachedRestartThatNobodySawNeverRaisesTheLimitAboveTheNewPool(t *testing.T) {
	r := newKVRig(t)
	p := startKVMapped(t, r.segment, kvPool)
	r.bound(t, 7, 4*kvPage)
	p.Crash()
	startKVPeer(t, r.segment, kvPool/2) // between two readings
	if s := observe(t, r.e); s.BoundEpoch != 0 || s.Bound != kvPool/2 {
		t.Errorf("bound %v of epoch %d, want the new engine's by nobody's order", s.Bound, s.BoundEpoch)
	}
	if s := r.bound(t, 8, kvPool); s.Bound != kvPool/2-1 {
		t.Errorf("bound %d, want one byte below the new pool: above it the engine has no addresses", s.Bound)
	}
}

func TestLimitLoweredByHandCountsAsThePoolAndMakesNoTokenSmaller(t *testing.T) {
	r := newKVRig(t)
	startKVMapped(t, r.segment, kvPool)
	before := observe(t, r.e)
	f, err := os.OpenFile(r.segment, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := writeLimit(f, 5*kvPage); err != nil { // kvctl limit
		t.Fatal(err)
	}
	s := observe(t, r.e)
	if s.Pool != 5*kvPage || s.Bound != 5*kvPage || s.BytesPerToken != before.BytesPerToken {
		t.Errorf("pool %v, bound %v, %v a token, want 5 pages and %v", s.Pool, s.Bound, s.BytesPerToken, before.BytesPerToken)
	}
	if s := r.bound(t, 1, kvPool); s.Bound != 5*kvPage-1 {
		t.Errorf("bound %d, want one byte below the limit by hand", s.Bound)
	}
}

func TestKvcachedNewFileOfTheSameNameBeginsAnew(t *testing.T) {
	r := newKVRig(t)
	p := startKVMapped(t, r.segment, kvPool)
	r.bound(t, 7, 4*kvPage)
	if err := os.Link(r.segment, r.segment+".old"); err != nil { // tmpfs gives no inode's number out again, this folder's file system may
		t.Fatal(err)
	}
	p.Do("exit", "ok")
	startKVPeer(t, r.segment, 2*kvPool)
	if s := observe(t, r.e); s.Pool != 2*kvPool || s.BoundEpoch != 0 {
		t.Errorf("pool %v, epoch %d, want the new file's", s.Pool, s.BoundEpoch)
	}
}

func TestKvcachedSegmentLeftFromADeadServerIsNoEngine(t *testing.T) {
	r := newKVRig(t)
	p := startKVMapped(t, r.segment, kvPool)
	r.bound(t, 7, 4*kvPage)
	p.Crash()
	r.stop()
	r.later()
	_, err := r.e.Observe(t.Context())
	wantError(t, err, "engine main: get http://"+r.addr+"/metrics: no answer", "connection refused")
	r.start() // a vLLM without kvcached
	r.later()
	const want = "is left from a server that is gone: it still has Lull's limit of 16.0MiB, and the server that answers has not opened it (KVCACHED_IPC_NAME?). Nothing is lent"
	_, err = r.e.Observe(t.Context())
	wantError(t, err, "engine main: segment "+r.segment+" "+want)
	if errors.Is(err, ErrUnreachable) {
		t.Error("counts as down, though the server serves")
	}
	_, err = r.e.SetBound(t.Context(), 8, kvPage)
	wantError(t, err, "engine main: set bound epoch=8 to 4.0MiB: segment "+r.segment+" "+want)
}

func TestKvcachedServerThatOnlyRefusedForAMomentKeepsItsOrder(t *testing.T) {
	r := newKVRig(t)
	p := startKVMapped(t, r.segment, kvPool)
	r.bound(t, 7, 4*kvPage)
	r.stop()
	r.later()
	if _, err := r.e.Observe(t.Context()); !errors.Is(err, ErrUnreachable) {
		t.Fatalf("error %v, want ErrUnreachable", err)
	}
	r.start()
	r.later()
	p.Do("alloc 1", "ok") // the engine lives
	if s := observe(t, r.e); s.Bound != 4*kvPage || s.BoundEpoch != 7 || s.Pool != kvPool {
		t.Errorf("bound %v of epoch %d, pool %v, want the order that stands", s.Bound, s.BoundEpoch, s.Pool)
	}
}

func TestKvcachedSegmentThatStaysEmptyUnderLoadIsNotTheServers(t *testing.T) {
	r := newKVRig(t)
	startKVPeer(t, r.segment, kvPool)
	r.running.Store(3)
	for range 3 {
		observe(t, r.e)
		r.now = r.now.Add(900 * time.Millisecond)
	}
	_, err := r.e.Observe(t.Context())
	wantError(t, err, "engine main: segment "+r.segment+": nothing is mapped while the server runs 3 requests; it belongs to another server")
}

func TestKvcachedSaysThatThereIsNoSegment(t *testing.T) {
	r := newKVRig(t)
	_, err := r.e.Observe(t.Context())
	wantError(t, err, "engine main: the server answers, but there is no segment "+r.segment+": ",
		"start it with ENABLE_KVCACHED=true KVCACHED_AUTOPATCH=1 and KVCACHED_IPC_NAME, on the same /dev/shm. Nothing is lent")
	if errors.Is(err, ErrUnreachable) || errors.Is(err, ErrNotReady) {
		t.Errorf("got %v, want a server that is up", err)
	}
	_, err = r.e.SetBound(t.Context(), 1, kvPage)
	wantError(t, err, "engine main: set bound epoch=1 to 4.0MiB: no segment "+r.segment)
	_, err = r.e.SetBound(t.Context(), 1, -1)
	wantError(t, err, "want at least 0 bytes")
}

func TestRestartedSidecarKeepsThePoolAndTheEpochOfASegment(t *testing.T) {
	r := newKVRig(t)
	startKVMapped(t, r.segment, kvPool)
	r.bound(t, 7, 4*kvPage)
	r.e = r.open(t)
	if s := observe(t, r.e); s.Pool != kvPool || s.Bound != 4*kvPage || s.BoundEpoch != 7 {
		t.Errorf("pool %v, bound %v, epoch %d, want what the sidecar before it knew", s.Pool, s.Bound, s.BoundEpoch)
	}
	_, err := r.e.SetBound(t.Context(), 6, kvPage)
	wantError(t, err, "set bound epoch=6 to 4.0MiB: stale epoch; the segment has 7 and keeps its limit")
	if !errors.Is(err, ErrStaleEpoch) {
		t.Errorf("got %v, want ErrStaleEpoch", err)
	}
	_, err = r.e.SetBound(t.Context(), 7, 5*kvPage)
	wantError(t, err, "stale epoch; the segment has 16.0MiB of this epoch and keeps it")
	if s := r.bound(t, 7, 4*kvPage); s.BoundEpoch != 7 {
		t.Errorf("the same order again: epoch %d, want 7", s.BoundEpoch)
	}
}

func TestKvcachedCrashBetweenNoteAndLimitLosesNothing(t *testing.T) {
	r := newKVRig(t)
	startKVPeer(t, r.segment, kvPool)
	s := observe(t, r.e)
	n := r.e.note
	if err := writeNote(r.segment, n.ordered(segmentInfo{limit: int64(s.Bound)}, 5, kvPage, kvPage)); err != nil {
		t.Fatal(err)
	}
	r.e = r.open(t)
	if s := observe(t, r.e); s.Pool != kvPool || s.BoundEpoch != 0 {
		t.Errorf("pool %v, epoch %d, want the pool and no order", s.Pool, s.BoundEpoch)
	}
}

func TestKvcachedThatDoesNotObeyIsSaidAndLentNothingMore(t *testing.T) {
	r := newKVRig(t)
	p := startKVPeer(t, r.segment, kvPool, "deaf")
	p.Do("alloc 2", "ok")
	r.bound(t, 1, 4*kvPage)
	r.later()
	if s := observe(t, r.e); s.Note != "" {
		t.Errorf("below its limit: note %q, want none", s.Note)
	}
	p.Do("alloc 8", "ok")
	const want = "kvcached does not keep to its limit: it holds 40.0MiB and has grown above the 16.0MiB that were set; KVCACHED_PAGE_PREALLOC_ENABLED=false switches the limit off"
	if s := observe(t, r.e); s.Note != want || s.Held != 10*kvPage {
		t.Errorf("held %v, note %q, want 10 pages and %q", s.Held, s.Note, want)
	}
	_, err := r.e.SetBound(t.Context(), 2, 2*kvPage)
	wantError(t, err, "set bound epoch=2 to 8.0MiB: "+want+"; nothing more is lent")
	if s := r.bound(t, 3, 12*kvPage); s.Bound != 12*kvPage {
		t.Errorf("a higher limit: bound %v, want 12 pages", s.Bound)
	}
}

func TestKvcachedWantsTheMetricsOfAnEngineThatItKnows(t *testing.T) {
	url := serve(t, routes{"/metrics": "llamacpp:requests_processing 1\n"})
	e := open(t, Config{Kind: KindKvcached, URL: url, Segment: "/dev/shm/none"})
	_, err := e.Observe(t.Context())
	wantError(t, err, "engine main: "+url+"/metrics: got neither vllm:num_requests_running nor sglang:num_running_reqs, want the metrics of vLLM or SGLang; SGLang needs --enable-metrics")
}

func TestKvcachedUnderSGLangCountsItsRequests(t *testing.T) {
	segment := filepath.Join(t.TempDir(), "kvcached_sg")
	p := startKVPeer(t, segment, kvPool)
	p.Do("alloc 1", "ok")
	url := serve(t, routes{"/metrics": read(t, "sglang.metrics"), "/v1/models": models})
	s := observe(t, open(t, Config{Kind: KindKvcached, URL: url, Segment: segment}))
	if s.Running != 4 || s.Waiting != 3 || s.Held != kvPage || s.MaxModelLen != 32768 || s.BytesPerToken != kvPool/20480 {
		t.Errorf("got %+v, want SGLang's requests over the segment's bytes", s)
	}
}
