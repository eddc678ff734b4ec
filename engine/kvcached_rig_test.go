package engine

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lull-project/lull/size"
)

// The peer's geometry: a pool of 16 page-ids of 4 MiB.
const (
	kvPage = 4 * size.MiB
	kvPool = 16 * kvPage
)

// kvPeer is an engine with kvcached's rules over its segment, in a Python process.
type kvPeer struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startKVPeer(t *testing.T, segment string, pool size.Bytes, more ...string) *kvPeer {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	args := append([]string{filepath.Join("testdata", "kvcached_peer.py"), segment, strconv.Itoa(int(pool)), strconv.Itoa(int(kvPage))}, more...)
	cmd := exec.Command(python, args...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &kvPeer{t: t, cmd: cmd, in: in, out: bufio.NewScanner(out)}
	p.out.Buffer(nil, 1<<20)
	t.Cleanup(p.crash)
	p.expect("ready")
	return p
}

// startKVMapped starts a peer that has one page-id in use, by which its size is
// known.
func startKVMapped(t *testing.T, segment string, pool size.Bytes, more ...string) *kvPeer {
	t.Helper()
	p := startKVPeer(t, segment, pool, more...)
	p.do("alloc 1", "ok")
	return p
}

func (p *kvPeer) expect(want string) {
	p.t.Helper()
	if !p.out.Scan() || p.out.Text() != want {
		p.t.Fatalf("peer said %q, want %q", p.out.Text(), want)
	}
}

func (p *kvPeer) say(command string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, command+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

func (p *kvPeer) do(command, want string) {
	p.t.Helper()
	p.say(command)
	p.expect(want)
}

// crash ends the peer without a word and waits for its end.
func (p *kvPeer) crash() {
	p.in.Close()
	_ = p.cmd.Wait()
}

// kvServer answers /metrics as vLLM does, at an address that outlives it.
type kvServer struct {
	t       *testing.T
	addr    string
	running atomic.Int64
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
	e, err := Open(Config{Name: "main", Kind: KindKvcached, URL: "http://" + r.addr, Segment: r.segment, Now: func() time.Time { return r.now }})
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
