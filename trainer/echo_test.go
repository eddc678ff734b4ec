package trainer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lull-project/lull/size"
)

// echo is a real Python trainer: `python -m lull.echo`, standard library only.
type echo struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Closer
	lines chan string
}

// startEcho runs it against srv. LULL_PYTHON names the interpreter, else python3.
func startEcho(t *testing.T, srv *Server, flags ...string) *echo {
	t.Helper()
	python := os.Getenv("LULL_PYTHON")
	if python == "" {
		python = "python3"
	}
	if _, err := exec.LookPath(python); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%v: install python3 or set LULL_PYTHON", err)
		}
		t.Skipf("%v: install python3 or set LULL_PYTHON", err)
	}
	lib, err := filepath.Abs("python")
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-m", "lull.echo", "--socket", srv.Addr(), "--job", "echo"}, flags...)
	e := &echo{t: t, cmd: exec.Command(python, args...), lines: make(chan string, 1024)}
	e.cmd.Env = append(os.Environ(), "PYTHONPATH="+lib, "PYTHONDONTWRITEBYTECODE=1")
	e.cmd.Stderr = os.Stderr
	out, err := e.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := e.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	e.stdin = in
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() { // ends when the process closes its stdout
		defer close(read)
		for s := bufio.NewScanner(out); s.Scan(); {
			e.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = in.Close()
		_ = e.cmd.Process.Kill()
		<-read
		_ = e.cmd.Wait()
	})
	return e
}

// event waits for a printed event.
func (e *echo) event(name string) map[string]any {
	e.t.Helper()
	timeout := time.After(patient)
	for {
		select {
		case line := <-e.lines:
			var v map[string]any
			if err := json.Unmarshal([]byte(line), &v); err != nil {
				e.t.Fatalf("echo printed %q: %v", line, err)
			}
			if v["event"] == name {
				return v
			}
		case <-timeout:
			e.t.Fatalf("echo: no event %q in %v", name, patient)
		}
	}
}

func (e *echo) signal(s syscall.Signal) {
	e.t.Helper()
	if err := e.cmd.Process.Signal(s); err != nil {
		e.t.Fatal(err)
	}
}

func TestPythonTrainerAnswersAnOrder(t *testing.T) {
	srv, r := listen(t, nil)
	e := startEcho(t, srv, "--ceiling", "64MiB", "--floor", "1MiB", "--min-budget", "2MiB", "--baseline", "3MiB")
	h := r.next(t, "hello")
	said := h.msg.(Hello)
	if said.Job != "echo" || said.Ceiling != 64*size.MiB || said.Floor != size.MiB || !said.FloorKnown ||
		said.MinBudget != 2*size.MiB || said.Baseline != 3*size.MiB || h.s.PID() != e.cmd.Process.Pid {
		t.Errorf("hello %+v from pid %d", said, h.s.PID())
	}
	order := Budget{Epoch: 7<<32 | 1, Bytes: 16 * size.MiB, Within: 12 * time.Millisecond, Reason: "arrival"}
	if err := h.s.Send(order); err != nil {
		t.Fatal(err)
	}
	if a := r.next(t, "ack").msg.(Ack); a.Epoch != order.Epoch || a.Held != order.Bytes || a.How != "drop" {
		t.Errorf("ack %+v", a)
	}
	if v := e.event("order"); v["reason"] != "arrival" || v["within_us"] != 12000.0 {
		t.Errorf("the trainer saw %v", v)
	}
	r.next(t, "report")
	_ = e.stdin.Close()
	if g := r.next(t, "gone"); g.why != GoneBye {
		t.Errorf("gone %s, want %s", g.why, GoneBye)
	}
}

func TestPythonTrainerHoldsRealMemory(t *testing.T) {
	srv, r := listen(t, nil)
	e := startEcho(t, srv, "--ceiling", "64MiB", "--hold")
	s := r.next(t, "hello").s
	before := rss(t, e.cmd.Process.Pid)
	if err := s.Send(Budget{Epoch: 7<<32 | 1, Bytes: 16 * size.MiB}); err != nil {
		t.Fatal(err)
	}
	r.next(t, "ack")
	if freed := before - rss(t, e.cmd.Process.Pid); freed < 47*size.MiB {
		t.Errorf("freed %v by the time of the ack, want 48MiB", freed)
	}
}

// rss reads a process's anonymous bytes.
func rss(t *testing.T, pid int) size.Bytes {
	t.Helper()
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			b, err := size.Parse(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")) + "KiB")
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
	}
	t.Fatal("no RssAnon in status")
	return 0
}

func TestPythonTrainerAcksOlderOrdersAsSuperseded(t *testing.T) {
	srv, r := listen(t, nil)
	startEcho(t, srv, "--ceiling", "64MiB")
	s := r.next(t, "hello").s
	_ = s.Send(Budget{Epoch: 7<<32 | 5, Bytes: size.MiB})
	r.next(t, "ack")
	_ = s.Send(Budget{Epoch: 7<<32 | 4, Bytes: 32 * size.MiB})
	if a := r.next(t, "ack").msg.(Ack); a.Epoch != 7<<32|4 || a.How != "superseded" || a.Held != size.MiB {
		t.Errorf("ack %+v, want epoch 7.4 superseded with 1MiB held", a)
	}
}

func TestPythonTrainerAnswersBadLinesAndLives(t *testing.T) {
	srv, r := listen(t, nil)
	startEcho(t, srv, "--ceiling", "64MiB")
	s := r.next(t, "hello").s
	for _, v := range readVectors(t) {
		if v.Error == nil {
			continue
		}
		if _, err := s.conn.Write([]byte(v.Wire + "\n")); err != nil {
			t.Fatal(err)
		}
		want := "trainer: echo/0/cpu refused a line: " + v.Error.What + " " + v.Error.Where + ": " + v.Error.Rule
		if got := r.fault(t); got != want {
			t.Errorf("%s: %s, want %s", v.Name, got, want)
		}
	}
	_ = s.Send(Budget{Epoch: 7<<32 | 1})
	r.next(t, "ack")
}

func TestMisbehavingTrainersAreWhatTheirFlagsSay(t *testing.T) {
	order := Budget{Epoch: 7<<32 | 1, Bytes: size.MiB}
	for flag, check := range map[string]func(*testing.T, *recorder, *echo){
		"--late-ack-ms=30": func(t *testing.T, r *recorder, _ *echo) { r.next(t, "ack") },
		"--duplicate-acks": func(t *testing.T, r *recorder, _ *echo) {
			if a, b := r.next(t, "ack").msg.(Ack), r.next(t, "ack").msg.(Ack); a.Epoch != b.Epoch {
				t.Errorf("acks %+v and %+v, want the same twice", a, b)
			}
		},
		"--lie-held=5MiB": func(t *testing.T, r *recorder, _ *echo) {
			if a := r.next(t, "ack").msg.(Ack); a.Held != 6*size.MiB {
				t.Errorf("held %v, want 6MiB", a.Held)
			}
		},
		"--lost-ack": func(t *testing.T, r *recorder, e *echo) {
			e.event("order")
			_ = e.stdin.Close()
			r.next(t, "gone") // and no ack before
		},
		"--die-on-order": func(t *testing.T, r *recorder, _ *echo) {
			if g := r.next(t, "gone"); g.why != GoneDied && g.why != GoneEOF {
				t.Errorf("gone %s", g.why)
			}
		},
	} {
		t.Run(flag, func(t *testing.T) {
			srv, r := listen(t, nil)
			e := startEcho(t, srv, "--ceiling", "64MiB", flag)
			s := r.next(t, "hello").s
			if err := s.Send(order); err != nil {
				t.Fatal(err)
			}
			check(t, r, e)
		})
	}
}

func TestKilledTrainerIsNoticedWhileAChildHoldsTheSocket(t *testing.T) {
	srv, r := listen(t, func(c *Config) { c.Heartbeat, c.Lease = time.Minute, time.Hour }) // silence would be noticed long after the test
	e := startEcho(t, srv, "--ceiling", "64MiB", "--leak-socket")
	s := r.next(t, "hello").s
	if s.peer.pidfd == nil {
		t.Skip("this kernel has no pidfd: Linux 5.3 or later is needed")
	}
	leaked := int(e.event("leaked")["pid"].(float64))
	e.signal(syscall.SIGKILL)
	if g := r.next(t, "gone"); g.why != GoneDied {
		t.Errorf("gone %s, want %s", g.why, GoneDied)
	}
	if err := syscall.Kill(leaked, 0); err != nil {
		t.Errorf("the child that holds the socket: %v, want it alive until now", err)
	}
	_ = syscall.Kill(leaked, syscall.SIGKILL)
}

func TestStoppedTrainerMissesItsHeartbeatsAndComesBack(t *testing.T) {
	srv, r := listen(t, func(c *Config) { c.Heartbeat = 50 * time.Millisecond; c.Lease = 10 * time.Second })
	e := startEcho(t, srv, "--ceiling", "64MiB")
	s := r.next(t, "hello").s
	e.signal(syscall.SIGSTOP)
	if err := unix.Waitid(unix.P_PID, e.cmd.Process.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	_ = s.Send(Budget{Epoch: 7<<32 | 1, Bytes: 96 * size.MiB}) // a grant that lies in its buffer
	if g := r.next(t, "gone"); g.why != GoneSilent {
		t.Errorf("gone %s, want %s", g.why, GoneSilent)
	}
	e.signal(syscall.SIGCONT)
	h := r.next(t, "hello")
	if m := h.msg.(Hello); m.Ceiling != 64*size.MiB {
		t.Errorf("it came back with ceiling %v, want 64MiB: a raise of a closed connection counts for nothing", m.Ceiling)
	}
}

func TestTrainerThatStopsReadingDoesNotBlockTheSidecar(t *testing.T) {
	srv, r := listen(t, func(c *Config) { c.Heartbeat = 400 * time.Millisecond })
	e := startEcho(t, srv, "--ceiling", "64MiB", "--stop-reading")
	s := r.next(t, "hello").s
	_ = s.Send(Budget{Epoch: 7<<32 | 1, Bytes: size.MiB})
	e.event("order")
	for {
		err := s.Send(Budget{Epoch: 7<<32 | 2, Bytes: size.MiB, Traceparent: strings.Repeat("0", 60<<10)})
		if errors.Is(err, ErrLate) || errors.Is(err, ErrGone) {
			break
		}
	}
	if g := r.next(t, "gone"); g.why != GoneSilent {
		t.Errorf("gone %s, want %s", g.why, GoneSilent)
	}
}

func TestRestartedSidecarFindsItsTrainerAgain(t *testing.T) {
	srv, r := listen(t, nil)
	startEcho(t, srv, "--ceiling", "64MiB")
	s := r.next(t, "hello").s
	_ = s.Send(Budget{Epoch: 7<<32 | 1, Bytes: 32 * size.MiB})
	r.next(t, "ack")
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	_, again := listen(t, func(c *Config) { c.Path, c.Session = srv.Addr(), 8 })
	m := again.next(t, "hello").msg.(Hello)
	if m.Ceiling != 32*size.MiB || m.LastEpoch != 7<<32|1 {
		t.Errorf("hello %+v, want the last grant and its epoch", m)
	}
}

func TestLeaseEndsAtTheMinBudget(t *testing.T) {
	srv, r := listen(t, func(c *Config) { c.Heartbeat, c.Lease = 20*time.Millisecond, 100*time.Millisecond })
	e := startEcho(t, srv, "--ceiling", "64MiB", "--min-budget", "4MiB")
	r.next(t, "hello")
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	if v := e.event("lease_ended"); v["ceiling"] != float64(4*size.MiB) {
		t.Errorf("lease ended with %v, want 4MiB", v)
	}
}

func TestFloorRequestIsAnswered(t *testing.T) {
	for _, granted := range []bool{true, false} {
		srv, r := listen(t, nil)
		e := startEcho(t, srv, "--ceiling", "64MiB", "--ask-floor", "8MiB")
		s := r.next(t, "hello").s
		if m := r.next(t, "request").msg.(Request); m.Floor != 8*size.MiB {
			t.Errorf("request %+v", m)
		}
		if granted {
			_ = s.Send(Budget{Epoch: 7<<32 | 1, Bytes: 56 * size.MiB, Reason: "floor", Floor: 8 * size.MiB})
		} else {
			_ = s.Send(Refused{Floor: 0, Reason: "capacity"})
		}
		if v := e.event("floor"); v["granted"] != granted {
			t.Errorf("the trainer saw %v, want granted %v", v, granted)
		}
	}
}

func TestPythonTrainerSpeaksTLS(t *testing.T) {
	p := certified(t)
	srv, r := listen(t, func(c *Config) { c.TCPAddr, c.TLS, c.Token = "127.0.0.1:0", p.server, testToken })
	ca := filepath.Join(shortDir(t), "ca.pem")
	if err := os.WriteFile(ca, p.pem, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LULL_TLS_CA", ca)
	t.Setenv("LULL_TOKEN", testToken)
	startEcho(t, srv, "--ceiling", "64MiB", "--socket", "tcp://"+srv.TCPAddr())
	s := r.next(t, "hello").s
	for i := range 20 {
		_ = s.Send(Budget{Epoch: 7<<32 | uint64(i+1), Bytes: size.MiB})
		if a := r.next(t, "ack").msg.(Ack); a.Epoch != 7<<32|uint64(i+1) {
			t.Fatalf("ack %+v", a)
		}
	}
}

// TestAnotherUsersProcessIsRefused starts this test binary again as another user
// where it may; elsewhere it gives the peer another uid.
func TestAnotherUsersProcessIsRefused(t *testing.T) {
	const nobody = 65534
	if os.Getuid() != 0 {
		srv, r := listen(t, func(c *Config) {
			c.peer = func(uintptr) (peer, error) { return peer{UID: nobody}, nil }
		})
		refused(t, dial(t, srv), r)
		return
	}
	srv, r := listen(t, func(c *Config) {
		c.Mode = 0o666 // so that the kernel lets it connect and the uid decides
		c.AllowedUIDs = []uint32{0}
	})
	if err := os.Chmod(filepath.Dir(srv.Addr()), 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(filepath.Dir(srv.Addr()), "dial") // where the other user may run it
	if err := os.WriteFile(exe, self, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe)
	cmd.Dir = "/"
	cmd.Env = []string{dialEnv + "=" + srv.Addr()}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	want := `{"type":"error","what":"connect","where":"uid","rule":"got 65534, want one of [0]"}` + "\n"
	if err != nil || string(out) != want {
		t.Fatalf("the other user's process read %q, %v, want %q", out, err, want)
	}
	if got := r.fault(t); !strings.Contains(got, "got 65534") {
		t.Errorf("fault %q", got)
	}
}

func refused(t *testing.T, c *client, r *recorder) {
	t.Helper()
	m, ok := c.read().(ErrorLine)
	if !ok || m.What != "connect" || m.Where != "uid" || !strings.HasPrefix(m.Rule, "got 65534, want one of ") {
		t.Errorf("got %+v, want a refusal", m)
	}
	c.ended()
	r.fault(t)
}

// TestRoundTrip prints what an order costs on the wire; it asserts nothing about
// time.
func TestRoundTrip(t *testing.T) {
	srv, r := listen(t, nil)
	startEcho(t, srv, "--ceiling", "64MiB")
	s := r.next(t, "hello").s
	const n = 500
	took := make([]time.Duration, 0, n)
	for i := range n {
		start := time.Now()
		if err := s.Send(Budget{Epoch: 7<<32 | uint64(i+1), Bytes: size.MiB}); err != nil {
			t.Fatal(err)
		}
		r.next(t, "ack")
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	t.Logf("budget to ack through python: n=%d p50=%v p99=%v max=%v", n, took[n/2], took[n*99/100], took[n-1])
}
