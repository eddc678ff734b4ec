package device

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/lull-project/lull/size"
)

// loseMain ends the first thread of the process that is measured.
var loseMain = make(chan struct{})

func init() {
	if os.Getenv("LULL_DEVICE_CHILD") == "1" {
		runtime.LockOSThread() // main runs on the process's first thread
	}
}

// TestMain doubles as the process that is measured: it maps what it is told on
// stdin and says so.
func TestMain(m *testing.M) {
	if os.Getenv("LULL_DEVICE_CHILD") == "1" {
		go func() {
			holdMemory()
			os.Exit(0)
		}()
		<-loseMain
		_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0) // this thread alone; init locked it to us
	}
	goleak.VerifyTestMain(m)
}

func holdMemory() {
	var region []byte
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch in.Text() {
		case "take":
			region, _ = syscall.Mmap(-1, 0, 64<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
			for i := 0; i < len(region); i += 4096 {
				region[i] = 1
			}
		case "give":
			_ = syscall.Munmap(region)
		case "lose main thread":
			close(loseMain)
		}
		fmt.Println(in.Text())
	}
}

type child struct {
	cmd *exec.Cmd
	in  *bufio.Writer
	out *bufio.Scanner
}

func startChild(t *testing.T) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "LULL_DEVICE_CHILD=1")
	stdin, _ := cmd.StdinPipe()
	stdout, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	c := &child{cmd: cmd, in: bufio.NewWriter(stdin), out: bufio.NewScanner(stdout)}
	c.say(t, "ready")
	return c
}

// openChild starts a child and opens its books.
func openChild(t *testing.T) (*child, *Process) {
	t.Helper()
	c := startChild(t)
	p, err := Open(c.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return c, p
}

func (c *child) say(t *testing.T, word string) {
	t.Helper()
	fmt.Fprintln(c.in, word)
	if err := c.in.Flush(); err != nil || !c.out.Scan() {
		t.Fatalf("child did not answer %q: %v", word, err)
	}
}

func TestReadFollowsMemoryUpAndDown(t *testing.T) {
	c, p := openChild(t)
	before, _ := p.Read()
	c.say(t, "take")
	taken, _ := p.Read()
	c.say(t, "give")
	after, _ := p.Read()
	if grown := taken - before; grown < 63*size.MiB || grown > 70*size.MiB {
		t.Errorf("64MiB taken showed as %v", grown)
	}
	if left := after - before; left > 6*size.MiB {
		t.Errorf("after giving 64MiB back %v are left, want about none", left)
	}
}

func TestReadSaysGoneAfterTheProcessEnds(t *testing.T) {
	c, p := openChild(t)
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	if _, err := p.Read(); !errors.Is(err, ErrGone) || !strings.Contains(err.Error(), fmt.Sprint(p.PID())) {
		t.Errorf("read after the end: %v, want ErrGone with the pid", err)
	}
	if _, err := ReadTree(p.PID()); !errors.Is(err, ErrGone) {
		t.Errorf("tree after the end: %v, want ErrGone", err)
	}
	if _, err := Open(p.PID()); !errors.Is(err, ErrGone) {
		t.Errorf("open after the end: %v, want ErrGone", err)
	}
}

func TestZombieHasNoMemory(t *testing.T) {
	c, p := openChild(t)
	_ = c.cmd.Process.Kill()
	fds := []unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 60_000); n != 1 {
		t.Fatalf("the child did not end in a minute: %v", err)
	}
	if text, _ := os.ReadFile(statusPath(p.PID())); !zombie(text) {
		t.Fatalf("the child is no zombie:\n%s", text)
	}
	if _, err := p.Read(); !errors.Is(err, ErrGone) {
		t.Errorf("zombie: %v, want ErrGone", err)
	}
	if _, err := Open(p.PID()); !errors.Is(err, ErrGone) {
		t.Errorf("open a zombie: %v, want ErrGone", err)
	}
}

// A process whose first thread has ended shows no bytes, and the others hold them.
func TestProcessThatIsEndingHoldsWhatItLastShowed(t *testing.T) {
	c, p := openChild(t)
	c.say(t, "take")
	before, err := p.Read()
	if err != nil || before < 64*size.MiB {
		t.Fatalf("read: %v, %v", before, err)
	}
	c.say(t, "lose main thread")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // the kernel has no event for it
		if text, _ := os.ReadFile(statusPath(p.PID())); zombie(text) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the child's first thread did not end in a minute")
		}
	}
	if b, err := p.Read(); err != nil || b != before {
		t.Errorf("with one thread left: %v, %v, want the %v that it last showed", b, err, before)
	}
	late, err := Open(p.PID())
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	want := fmt.Sprintf("device: read pid %d: no RssAnon in its status: it is ending and does not show its bytes any more", p.PID())
	if _, err := late.Read(); err == nil || errors.Is(err, ErrGone) || err.Error() != want {
		t.Errorf("first read of it: %v, want %s", err, want)
	}
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	if _, err := p.Read(); !errors.Is(err, ErrGone) {
		t.Errorf("after its end: %v, want ErrGone", err)
	}
}

func TestReadTreeIncludesChildren(t *testing.T) {
	c := startChild(t)
	own, err := readOnce(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	c.say(t, "take")
	tree, err := ReadTree(os.Getpid())
	if err != nil || tree < own/2+64*size.MiB {
		t.Errorf("tree %v (%v), want at least the child's 64MiB beside our %v", tree, err, own)
	}
}

func TestPIDByPortFindsTheListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if pid, err := PIDByPort(port); err != nil || pid != os.Getpid() {
		t.Errorf("pid %d, %v, want %d", pid, err, os.Getpid())
	}
	_ = l.Close()
	want := fmt.Sprintf("device: pid by port %d: nobody listens there", port)
	if _, err := PIDByPort(port); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestPIDBySocketFindsTheListener(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if pid, err := PIDBySocket(path); err != nil || pid != os.Getpid() {
		t.Errorf("pid %d, %v, want %d", pid, err, os.Getpid())
	}
	_ = l.Close()
	if _, err := PIDBySocket(path); err == nil || err.Error() != "device: pid by socket "+path+": nobody listens there" {
		t.Errorf("error %v, want that nobody listens", err)
	}
}

func TestCgroupNamesTheFileItRead(t *testing.T) {
	b, file, err := Cgroup(os.Getpid())
	if err != nil {
		if !strings.Contains(err.Error(), "no memory file can be read under /sys/fs/cgroup") {
			t.Errorf("error %v does not say what is missing", err)
		}
		return
	}
	if b <= 0 || file == "" {
		t.Errorf("got %v from %q", b, file)
	}
}

func TestCgroupFilesPreferTheMemoryController(t *testing.T) {
	got := cgroupFiles("4:memory:/a/b\n1:cpu:/x\n0::/c\nnonsense\n")
	want := []string{
		"/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
		"/sys/fs/cgroup/c/memory.current", "/sys/fs/cgroup/unified/c/memory.current",
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestLockIsHeldByOneAndCountsStarts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	first, err := Acquire(dir, "host0")
	if err != nil || first.Session != 1 {
		t.Fatalf("first: %+v, %v", first, err)
	}
	want := "device: lock " + filepath.Join(dir, "host0.lock") + ": another sidecar holds it; one sidecar writes a device"
	if _, err := Acquire(dir, "host0"); err == nil || err.Error() != want {
		t.Errorf("second while held: %v, want %s", err, want)
	}
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	again, err := Acquire(dir, "host0")
	if err != nil || again.Session != 2 {
		t.Errorf("after release: %+v, %v, want session 2", again, err)
	}
}

func TestCounterThatIsNoneBeginsAnewAndIsSaid(t *testing.T) {
	for _, held := range []string{"seven\n", "-1", "1048576", strings.Repeat("\x00", 4096)} {
		dir := t.TempDir()
		path := filepath.Join(dir, "gpu0.lock")
		if err := os.WriteFile(path, []byte(held), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := Acquire(dir, "gpu0")
		if err != nil {
			t.Fatalf("%q: %v", held, err)
		}
		if l.Session != 1 || l.Unreadable == "" || len(l.Unreadable) > 40 {
			t.Errorf("%q: got session %d and %q, want 1 and what was there", held, l.Session, l.Unreadable)
		}
		if text, _ := os.ReadFile(path); string(text) != "0000000001\n" {
			t.Errorf("%q: the file holds %q, want the counter", held, text)
		}
		_ = l.Release()
	}
}

func TestSessionNeverGoesBack(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "host0.lock")
	if err := os.WriteFile(path, []byte("41\n"), 0o600); err != nil { // of another width
		t.Fatal(err)
	}
	before, _ := os.Stat(path)
	l, err := Acquire(dir, "host0")
	if err != nil || l.Session != 42 {
		t.Fatalf("got %+v, %v, want session 42", l, err)
	}
	for _, c := range []struct{ to, want uint32 }{{7, 42}, {42, 42}, {1000, 1000}, {43, 1000}} {
		if err := l.RaiseTo(c.to); err != nil || l.Session != c.want {
			t.Errorf("raise to %d: session %d, %v, want %d", c.to, l.Session, err, c.want)
		}
		if text, _ := os.ReadFile(path); string(text) != fmt.Sprintf("%010d\n", c.want) {
			t.Errorf("raise to %d: the file has %q, want %d in ten digits", c.to, text, c.want)
		}
	}
	if after, _ := os.Stat(path); !os.SameFile(before, after) {
		t.Error("the file was replaced, want it written in place: it is the lock")
	}
	if _, err := Acquire(dir, "host0"); err == nil {
		t.Error("the lock was lost by a write")
	}
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
	again, err := Acquire(dir, "host0")
	if err != nil || again.Session != 1001 {
		t.Errorf("after release: %+v, %v, want session 1001", again, err)
	}
}

func TestSessionIsRefusedBeyondItsEnd(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "host0.lock")
	l, err := Acquire(dir, "host0")
	if err != nil {
		t.Fatal(err)
	}
	want := "device: session in " + path + ": got 1048576, want at most 1048575; remove the file once no engine or trainer of that device runs"
	if err := l.RaiseTo(1 << 20); err == nil || err.Error() != want || l.Session != 1 {
		t.Errorf("session %d, %v, want 1 and %s", l.Session, err, want)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := l.RaiseTo(5); !errors.Is(err, os.ErrNotExist) || l.Session != 1 {
		t.Errorf("session %d, %v, want 1 and that the file is not there", l.Session, err)
	}
}

func TestLockSaysWhyTheDirectoryCannotBeMade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Acquire(filepath.Join(file, "run"), "host0"); err == nil || !strings.HasPrefix(err.Error(), "device: lock host0: ") {
		t.Errorf("error %v", err)
	}
}

func BenchmarkRead(b *testing.B) {
	p, err := Open(os.Getpid())
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Read(); err != nil {
			b.Fatal(err)
		}
	}
}
