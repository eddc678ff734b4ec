package engine

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lull-project/lull/engine/enginetest"
	"github.com/lull-project/lull/size"
)

// The peer's geometry: a pool of 16 page-ids of 4 MiB.
const (
	kvPage = 4 * size.MiB
	kvPool = 16 * kvPage
)

// kvPeer is an engine with kvcached's rules over its segment.
type kvPeer struct{ *enginetest.Peer }

func startKVPeer(t *testing.T, segment string, pool size.Bytes, more ...string) *kvPeer {
	t.Helper()
	args := append([]string{filepath.Join("testdata", "kvcached_peer.py"), segment, strconv.Itoa(int(pool)), strconv.Itoa(int(kvPage))}, more...)
	return &kvPeer{enginetest.Start(t, args...)}
}

// startKVMapped starts a peer that has one page-id in use, by which its size is
// known.
func startKVMapped(t *testing.T, segment string, pool size.Bytes, more ...string) *kvPeer {
	t.Helper()
	p := startKVPeer(t, segment, pool, more...)
	p.Do("alloc 1", "ok")
	return p
}

// kvServer answers /metrics as vLLM does, at an address that outlives it.
type kvServer struct {
	t       *testing.T
	addr    string
	running atomic.Int64
	more    atomic.Value // further metrics, a string
	server  *http.Server
	ended   chan struct{}
}

func startKVServer(t *testing.T) *kvServer {
	t.Helper()
	s := &kvServer{t: t, addr: "127.0.0.1:0"}
	s.start()
	t.Cleanup(s.stop)
	return s
}

func (s *kvServer) start() {
	s.t.Helper()
	l, err := net.Listen("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.addr = l.Addr().String()
	s.server, s.ended = &http.Server{Handler: s}, make(chan struct{})
	go func(srv *http.Server, ended chan struct{}) { defer close(ended); _ = srv.Serve(l) }(s.server, s.ended)
}

func (s *kvServer) stop() {
	_ = s.server.Close()
	<-s.ended
}

func (s *kvServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v1/models" {
		_, _ = io.WriteString(w, models)
		return
	}
	fmt.Fprintf(w, "vllm:kv_cache_usage_perc 0.9\nvllm:num_requests_running %d\nvllm:num_requests_waiting 0\nvllm:num_preemptions_total 2\n"+
		"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"512\"} 1\n", s.running.Load())
	if more, ok := s.more.Load().(string); ok {
		_, _ = io.WriteString(w, more)
	}
}

// kvRig is a server, a segment's path and an engine over both, whose clock the
// test moves.
type kvRig struct {
	*kvServer
	segment string
	now     time.Time
	e       *kvcached
}

func newKVRig(t *testing.T) *kvRig {
	t.Helper()
	r := &kvRig{kvServer: startKVServer(t), segment: filepath.Join(t.TempDir(), "kvcached_main"), now: testTime}
	r.e = r.open(t)
	return r
}

func (r *kvRig) open(t *testing.T) *kvcached {
	t.Helper()
	e, err := Open(t.Context(), Config{Name: "main", Kind: KindKvcached, URL: "http://" + r.addr, Segment: r.segment, Now: func() time.Time { return r.now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = Close(e) })
	return e.(*kvcached)
}

// later moves the clock past everything that is kept.
func (r *kvRig) later() { r.now = r.now.Add(time.Second) }

func (r *kvRig) bound(t *testing.T, epoch uint64, b size.Bytes) Sample {
	t.Helper()
	s, err := r.e.SetBound(t.Context(), epoch, b)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
