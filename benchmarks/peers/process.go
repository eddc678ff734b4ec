package peers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	// readyLimit is how long a peer may take from start to first answer; LiteLLM
	// takes 20 s to import on a slow machine.
	readyLimit = 2 * time.Minute
	readyPoll  = 100 * time.Millisecond
	// stopLimit is how long a peer may take to end when asked; then it is killed.
	stopLimit = 5 * time.Second
)

// Process is a peer that runs.
type Process struct {
	Installed
	// Addr is where it listens, host:port.
	Addr string
	// PID is the process that Stop ends.
	PID  int
	work string
	done chan struct{} // closed when the process has ended
	err  error         // of its end; read after done
}

// Start starts the peer in front of an upstream (host:port) and waits until ready
// finds it answering. The peer sees no environment of this process but PATH, so
// no key and no proxy setting reaches it.
func (in Installed) Start(ctx context.Context, upstream string, ready func(ctx context.Context, addr string) error) (*Process, error) {
	addr, err := freeAddr()
	second, err2 := freeAddr()
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("start %s: %w", in.Name, err)
	}
	work, err := os.MkdirTemp("", "lull-peer-"+in.Name+"-")
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", in.Name, err)
	}
	l := in.launch(place{
		Root: in.root, Work: work, Addr: addr, Port: portOf(addr), Second: portOf(second), Upstream: upstream, Cores: runtime.NumCPU(),
	})
	p := &Process{Installed: in, Addr: addr, work: work, done: make(chan struct{})}
	if err := p.begin(l); err != nil {
		os.RemoveAll(work)
		return nil, fmt.Errorf("start %s: %w", in.Name, err)
	}
	if err := p.await(ctx, ready); err != nil {
		err = fmt.Errorf("start %s: %w; its output ends: %s", in.Name, err, p.output())
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

// begin writes the files and starts the process, in a group of its own so that
// what it starts ends with it.
func (p *Process) begin(l launch) error {
	for name, text := range l.files {
		if err := os.WriteFile(filepath.Join(p.work, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	log, err := os.Create(p.logFile())
	if err != nil {
		return err
	}
	cmd := exec.Command(l.argv[0], l.argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.work, log, log
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.work, "LANG=C.UTF-8"}, l.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() { // ends with the process; Stop waits for it
		// The kernel sends Pdeathsig when the thread that started it ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		defer log.Close()
		err := cmd.Start()
		if err == nil {
			p.PID = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	return <-started
}

// await asks until the peer answers, has ended or takes too long.
func (p *Process) await(ctx context.Context, ready func(context.Context, string) error) error {
	limit, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	poll := time.NewTicker(readyPoll)
	defer poll.Stop()
	var last error
	for {
		err := ready(limit, p.Addr)
		if err == nil {
			return nil
		}
		if last == nil || limit.Err() == nil { // that time is up is no news of the peer
			last = err
		}
		select {
		case <-p.done:
			return fmt.Errorf("got its end (%v), want answers on %s", p.err, p.Addr)
		case <-limit.Done():
			return fmt.Errorf("got no good answer on %s (%v), want one within %v: %w", p.Addr, last, readyLimit, limit.Err())
		case <-poll.C:
		}
	}
}

// Stop asks the process to end, kills it when it does not, and removes its
// folder. What it left running in its group is killed too.
func (p *Process) Stop() error {
	_ = syscall.Kill(p.PID, syscall.SIGTERM) // it may have ended by itself
	late := time.NewTimer(stopLimit)
	defer late.Stop()
	select {
	case <-p.done:
	case <-late.C:
	}
	_ = syscall.Kill(-p.PID, syscall.SIGKILL)
	<-p.done
	if err := os.RemoveAll(p.work); err != nil {
		return fmt.Errorf("stop %s: remove its folder: %w", p.Name, err)
	}
	return nil
}

func (p *Process) logFile() string { return filepath.Join(p.work, "output.log") }

// output is the end of what the process printed.
func (p *Process) output() string {
	b, err := os.ReadFile(p.logFile())
	if err != nil {
		return err.Error()
	}
	if s := tail(b); s != "" {
		return s
	}
	return "nothing"
}

// freeAddr is a loopback address that was free a moment ago.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func portOf(addr string) string {
	_, port, _ := net.SplitHostPort(addr) // a listener's address always splits
	return port
}

// render puts a place into a file of conf/.
func render(text string, at place) string {
	return strings.NewReplacer(
		"@ADDR@", at.Addr, "@PORT@", at.Port, "@UPSTREAM@", at.Upstream, "@WORK@", at.Work,
		"@CORES@", fmt.Sprint(at.Cores),
	).Replace(text)
}
