package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lull-project/lull/engine/enginetest"
	"github.com/lull-project/lull/size"
)

// pagePeer is the plugin's own code over a fake block pool.
type pagePeer struct{ *enginetest.Peer }

func startPeer(t *testing.T, dir string, mode int) *pagePeer {
	t.Helper()
	if err := exec.Command(enginetest.Python(t), "-c", "import sys; assert sys.version_info >= (3, 10)").Run(); err != nil {
		t.Skip("python3 is older than 3.10")
	}
	return &pagePeer{enginetest.Start(t, filepath.Join("vllm_plugin", "tests", "page_peer.py"), dir, fmt.Sprint(mode))}
}

func (p *pagePeer) do(command string) {
	p.T.Helper()
	p.Peer.Do(command, "ok")
}

// The peer's geometry: 32 usable blocks of 32 KiB.
const (
	peerBlock = 32 * size.KiB
	peerPool  = 32 * peerBlock
)

func openPeer(t *testing.T, dir string) *lullVLLM {
	t.Helper()
	e, err := Open(t.Context(), Config{Name: "v", Kind: KindLullVLLM, URL: "http://127.0.0.1:1", Page: filepath.Join(dir, "vllm.page")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Close(e) })
	return e.(*lullVLLM)
}

func observe(t *testing.T, e Engine) Sample {
	t.Helper()
	s, err := e.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func setBound(t *testing.T, e *lullVLLM, epoch uint64, b size.Bytes) Sample {
	t.Helper()
	s, err := e.SetBound(t.Context(), epoch, b)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestLullVLLMSampleIsWhatTheEngineWrote(t *testing.T) {
	dir := t.TempDir()
	p := startPeer(t, dir, modeHostPages)
	e := openPeer(t, dir)
	p.do("use 5")
	s := observe(t, e)
	want := Sample{
		At: s.At, PID: p.Process.Pid, Held: peerPool, Needed: 5 * peerBlock, Evictable: 27 * peerBlock,
		Bound: peerPool, Pool: peerPool, Baseline: size.MiB, UsageFrac: 5.0 / 32,
		BytesPerToken: 2 * size.KiB, BlockTokens: 16, MaxModelLen: 2048,
	}
	if s != want {
		t.Errorf("got %+v, want %+v", s, want)
	}
	if c := e.Capabilities(); !c.Bound || c.Static || c.Kind != KindLullVLLM {
		t.Errorf("capabilities %+v, want a bound", c)
	}
}

// TestLullVLLMTellsWhatItsCacheFinds: tokens looked up and found, and the bytes of
// cached blocks, which are never more than what is evictable.
func TestLullVLLMTellsWhatItsCacheFinds(t *testing.T) {
	e := &lullVLLM{cfg: Config{Now: time.Now}}
	w := make([]uint64, telemetryWords)
	w[wordMode], w[wordRanks], w[wordBlockBytes], w[wordPoolBlocks], w[wordBlocksMapped], w[wordBlocksUsed] = modeHostPages, 1, 1024, 100, 60, 20
	w[wordBlocksCached], w[wordPrefixQueries], w[wordPrefixHits] = 30, 5000, 4000
	if s := e.sample(w); s.Cached != 30*size.KiB || s.PrefixQueries != 5000 || s.PrefixHits != 4000 {
		t.Errorf("got %v cached, %d looked up, %d found", s.Cached, s.PrefixQueries, s.PrefixHits)
	}
	w[wordBlocksCached] = 70 // not yet given back
	if s := e.sample(w); s.Cached != 40*size.KiB || s.Cached != s.Evictable {
		t.Errorf("got %v cached of %v evictable", s.Cached, s.Evictable)
	}
	w[wordMode] = modeTelemetry
	if s := e.sample(w); s.Cached != 0 {
		t.Errorf("got %v cached of a static pool, which has nothing to give", s.Cached)
	}
}

func TestLullVLLMConfirmsABoundOnceTheBytesAreGone(t *testing.T) {
	dir := t.TempDir()
	p := startPeer(t, dir, modeHostPages)
	e := openPeer(t, dir)
	s := setBound(t, e, 1<<32|1, 10*peerBlock)
	if s.Bound != 10*peerBlock || s.Held != 10*peerBlock || s.BoundEpoch != 1<<32|1 {
		t.Errorf("got bound %v, held %v, epoch %d, want 10 blocks each and the epoch", s.Bound, s.Held, s.BoundEpoch)
	}
	p.do("hold") // the workers take their time
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	s, err := e.SetBound(ctx, 1<<32|2, 4*peerBlock)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "held 320.0KiB after the wait; the order stands") {
		t.Fatalf("error %v, want the deadline and what is held", err)
	}
	if s.BoundEpoch != 1<<32|2 || s.Bound != 4*peerBlock || s.Held != 10*peerBlock {
		t.Errorf("unconfirmed: epoch %d, bound %v, held %v, want the order and still 10 blocks", s.BoundEpoch, s.Bound, s.Held)
	}
	p.do("go")
	if s = setBound(t, e, 1<<32|2, 4*peerBlock); s.BoundEpoch != 1<<32|2 || s.Held != 4*peerBlock {
		t.Errorf("after the workers: epoch %d, held %v, want the newer epoch and 4 blocks", s.BoundEpoch, s.Held)
	}
	if s = setBound(t, e, 1<<32|3, peerPool); s.Bound != peerPool || s.Held != 4*peerBlock {
		t.Errorf("raised: bound %v, held %v, want the pool and still 4 blocks", s.Bound, s.Held)
	}
}

func TestLullVLLMReportsUseAboveTheBound(t *testing.T) {
	dir := t.TempDir()
	p := startPeer(t, dir, modeHostPages)
	e := openPeer(t, dir)
	p.do("use 20")
	s := setBound(t, e, 5, 8*peerBlock)
	if s.Held != 20*peerBlock || s.Bound != 8*peerBlock || s.BoundEpoch != 5 {
		t.Errorf("in use: held %v, bound %v, epoch %d, want 20 blocks above the bound", s.Held, s.Bound, s.BoundEpoch)
	}
	p.do("free")
	if s = setBound(t, e, 5, 8*peerBlock); s.Held != 8*peerBlock || s.BoundEpoch != 5 {
		t.Errorf("freed: held %v, epoch %d, want 8 blocks and the epoch", s.Held, s.BoundEpoch)
	}
}

func TestLullVLLMRefusesAnOlderEpoch(t *testing.T) {
	dir := t.TempDir()
	startPeer(t, dir, modeHostPages)
	e := openPeer(t, dir)
	setBound(t, e, 9, 8*peerBlock)
	_, err := e.SetBound(t.Context(), 8, peerPool)
	if !errors.Is(err, ErrStaleEpoch) || !strings.Contains(err.Error(), "set bound epoch=8 to 1.0MiB: stale epoch; the engine has 9 and keeps its bound") {
		t.Fatalf("error %v, want ErrStaleEpoch with both epochs", err)
	}
	_, err = e.SetBound(t.Context(), 9, peerPool)
	if !errors.Is(err, ErrStaleEpoch) || !strings.Contains(err.Error(), "the engine has 256.0KiB of this epoch and keeps it") {
		t.Fatalf("other bytes: error %v, want ErrStaleEpoch with the bytes", err)
	}
	if s := observe(t, e); s.Bound != 8*peerBlock || s.BoundEpoch != 9 {
		t.Errorf("bound %v of epoch %d, want the newer one kept", s.Bound, s.BoundEpoch)
	}
}

func TestLullVLLMSaysWhyItSetsNoBound(t *testing.T) {
	dir := t.TempDir()
	p := startPeer(t, dir, modeTelemetry)
	e := openPeer(t, dir)
	if c := e.Capabilities(); c.Bound || !c.Static {
		t.Errorf("capabilities %+v, want static", c)
	}
	if s := observe(t, e); s.Held != peerPool || s.Bound != peerPool || s.Evictable != 0 {
		t.Errorf("held %v, bound %v, evictable %v, want a static pool", s.Held, s.Bound, s.Evictable)
	}
	if _, err := e.SetBound(t.Context(), 1, peerBlock); err == nil || !strings.Contains(err.Error(), "the plugin sets no bound on this engine; its log says why") {
		t.Errorf("error %v, want the reason", err)
	}
	p.do("exit")
	dir = t.TempDir()
	p = startPeer(t, dir, modeHostPages)
	e = openPeer(t, dir)
	if _, err := e.SetBound(t.Context(), 1, -1); err == nil || !strings.Contains(err.Error(), "want at least 0 bytes") {
		t.Errorf("negative: error %v, want the rule", err)
	}
	p.do("break")
	if _, err := e.SetBound(t.Context(), 1, peerBlock); err == nil || !strings.Contains(err.Error(), "met an error and froze") {
		t.Errorf("broken: error %v, want that it froze", err)
	}
}

func TestLullVLLMRingsWhenAnAllocationFallsShort(t *testing.T) {
	dir := t.TempDir()
	p := startPeer(t, dir, modeHostPages)
	e := openPeer(t, dir)
	rang := e.Shortages()
	setBound(t, e, 1, 2*peerBlock)
	p.do("short") // a request of 64 + 16 tokens, which are 5 blocks
	select {
	case <-rang:
	case <-time.After(time.Minute):
		t.Fatal("no bell within a minute")
	}
	if s := observe(t, e); s.Waiting != 1 || s.Short != 3*peerBlock {
		t.Errorf("waiting %d, short %v, want 1 and 3 blocks beyond the bound of 2", s.Waiting, s.Short)
	}
	if err := Close(e); err != nil {
		t.Fatal(err)
	}
}

func TestLullVLLMNoticesDeathAndRestart(t *testing.T) {
	dir := t.TempDir()
	e := openPeer(t, dir)
	now := time.Unix(1000, 0)
	e.cfg.Now = func() time.Time { return now }
	if _, err := e.Observe(t.Context()); !errors.Is(err, ErrUnreachable) || !strings.HasPrefix(err.Error(), "engine v: no answer: no page "+dir) {
		t.Fatalf("before the start: error %v, want ErrUnreachable with the page", err)
	}
	p := startPeer(t, dir, modeHostPages)
	setBound(t, e, 7, 4*peerBlock)
	p.Crash()
	observe(t, e) // takes note of the last beat
	now = now.Add(vllmQuiet + time.Millisecond)
	if _, err := e.Observe(t.Context()); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "nobody holds") {
		t.Fatalf("after a crash: error %v, want ErrUnreachable with the lock", err)
	}
	startPeer(t, dir, modeHostPages)
	if s := observe(t, e); s.Bound != peerPool || s.BoundEpoch != 0 {
		t.Fatalf("after a restart: bound %v, epoch %d, want the pool and none", s.Bound, s.BoundEpoch)
	}
	if s := setBound(t, e, 8, 4*peerBlock); s.BoundEpoch != 8 {
		t.Errorf("epoch %d, want 8", s.BoundEpoch)
	}
}

func TestLullVLLMCountsASilentEngineAsDown(t *testing.T) {
	dir := t.TempDir()
	p := startPeer(t, dir, modeHostPages)
	e := openPeer(t, dir)
	observe(t, e)
	if err := p.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Process.Signal(syscall.SIGCONT) }()
	now := time.Now()
	e.cfg.Now = func() time.Time { return now }
	observe(t, e)
	now = now.Add(time.Second)
	observe(t, e) // it lives, as its lock says
	now = now.Add(2 * time.Second)
	if _, err := e.Observe(t.Context()); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "vllm.page for 3") {
		t.Fatalf("error %v, want ErrUnreachable with the silence", err)
	}
}

func TestLullVLLMReadsWholePagesWhileTheEngineWrites(t *testing.T) {
	dir := t.TempDir()
	p := startPeer(t, dir, modeHostPages)
	e := openPeer(t, dir)
	p.Say("spin 3000")
	done := make(chan struct{})
	go func() { defer close(done); p.Expect("ok") }()
	reads := 0
	for open := true; open; reads++ {
		if s := observe(t, e); s.Pool != peerPool {
			t.Fatalf("pool %v, want %v", s.Pool, peerPool)
		}
		select {
		case <-done:
			open = false
		default:
		}
	}
	t.Logf("%d reads", reads)
}

func TestRestartedSidecarTakesOverTheOrder(t *testing.T) {
	dir := t.TempDir()
	startPeer(t, dir, modeHostPages)
	first := openPeer(t, dir)
	setBound(t, first, 3, 6*peerBlock)
	second := openPeer(t, dir)
	observe(t, second) // a sign of life must not order anything else
	if s := observe(t, first); s.Bound != 6*peerBlock || s.BoundEpoch != 3 {
		t.Fatalf("bound %v of epoch %d, want it kept", s.Bound, s.BoundEpoch)
	}
	if s := setBound(t, second, 4, 8*peerBlock); s.BoundEpoch != 4 {
		t.Errorf("epoch %d, want 4", s.BoundEpoch)
	}
}

func TestDamagedOrderPageKeepsTheBoundUntilTheNextOrder(t *testing.T) {
	dir := t.TempDir()
	startPeer(t, dir, modeHostPages)
	first := openPeer(t, dir)
	setBound(t, first, 3, 6*peerBlock)
	if err := os.WriteFile(filepath.Join(dir, "vllm.bound"), make([]byte, pageSize), 0o600); err != nil {
		t.Fatal(err)
	}
	second := openPeer(t, dir)
	if s := observe(t, second); s.Bound != 6*peerBlock {
		t.Errorf("bound %v, want it kept", s.Bound)
	}
	if s := setBound(t, second, 4, 8*peerBlock); s.BoundEpoch != 4 || s.Bound != 8*peerBlock {
		t.Errorf("bound %v of epoch %d, want the new order", s.Bound, s.BoundEpoch)
	}
}

func TestOpenLullVLLMWantsThePathOfAPage(t *testing.T) {
	for _, page := range []string{"vllm.page", "/dev/shm/vllm"} {
		_, err := Open(t.Context(), Config{Name: "v", Kind: KindLullVLLM, URL: "http://127.0.0.1:1", Page: page})
		want := fmt.Sprintf("engine v: page: got %q, want an absolute path that ends in .page", page)
		if err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}
