package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// procSpec is a child process to start.
type procSpec struct {
	Name string // for errors and the log's file name
	Path string
	Args []string
	Env  []string // added to the demo's own
	// Cores and Nice are its placement.
	Cores []int
	Nice  int
	// LogDir gets NAME.log with its stderr, and its stdout after the ready line.
	LogDir string
	// Group puts the child and what it starts into a process group, which stop ends
	// whole.
	Group bool
	// Ready says that its first line on stdout is a JSON object.
	Ready bool
}

// proc is a running child.
type proc struct {
	name, log string
	cores     []int
	cmd       *exec.Cmd
	group     bool
	ready     chan []byte   // the first line of stdout, closed without one
	done      chan struct{} // closed when it has ended and its output is read
	err       error         // how it ended; read after done
}

// startProc starts a child on its own cores. Two goroutines belong to it: one
// holds the OS thread that the child was started from until the child ends (its
// placement is inherited from that thread, and the kernel kills the child with
// it), one reads its output to the end. Both end with the child.
func startProc(spec procSpec) (*proc, error) {
	if err := os.MkdirAll(spec.LogDir, 0o755); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	p := &proc{
		name: spec.Name, log: filepath.Join(spec.LogDir, spec.Name+".log"),
		cores: spec.Cores, ready: make(chan []byte, 1), done: make(chan struct{}), group: spec.Group,
	}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	p.cmd = exec.Command(spec.Path, spec.Args...)
	p.cmd.Env = append(os.Environ(), spec.Env...)
	p.cmd.Stderr = log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: spec.Group}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", spec.Name, err), log.Close())
	}
	started := make(chan error, 1)
	go p.own(spec, out, log, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	return p, nil
}

// own starts the child and stays on its thread until the child has ended. The
// thread is never unlocked: it dies with the goroutine, since its placement
// must not be used by others.
func (p *proc) own(spec procSpec, out io.Reader, log *os.File, started chan<- error) {
	runtime.LockOSThread()
	defer log.Close()
	if err := pinThread(spec.Cores, spec.Nice); err != nil {
		started <- err
		return
	}
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	read := make(chan struct{})
	go func() { defer close(read); p.readOutput(out, log, spec.Ready) }()
	<-read // Wait closes the pipe, so the output is read first
	p.err = p.cmd.Wait()
	close(p.done)
}

// readOutput hands out the first line and copies the rest to the log.
func (p *proc) readOutput(out io.Reader, log io.Writer, ready bool) {
	br := bufio.NewReader(out)
	if ready {
		if line, err := br.ReadBytes('\n'); err == nil {
			p.ready <- line
		}
	}
	close(p.ready)
	_, _ = io.Copy(log, br) // a log that cannot be written must not stop the child
}

// pid is the child's process id.
func (p *proc) pid() int { return p.cmd.Process.Pid }

// awaitReady decodes the ready line into v.
func (p *proc) awaitReady(ctx context.Context, limit time.Duration, v any) error {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case line, ok := <-p.ready:
		if !ok {
			return fmt.Errorf("%s: ended without a ready line; %s", p.name, p.logTail())
		}
		if err := json.Unmarshal(line, v); err != nil {
			return fmt.Errorf("%s: ready line %.120q: %w, want one JSON object", p.name, line, err)
		}
		return nil
	case <-t.C:
		return fmt.Errorf("%s: no ready line in %v; %s", p.name, limit, p.logTail())
	case <-ctx.Done():
		return fmt.Errorf("%s: waiting for its ready line: %w", p.name, ctx.Err())
	}
}

// stop ends the child: SIGTERM, then SIGKILL after grace. A child that has
// ended already is left alone.
func (p *proc) stop(grace time.Duration) {
	if p == nil {
		return
	}
	p.signal(syscall.SIGTERM)
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
		p.signal(syscall.SIGKILL)
		<-p.done
	}
	if p.group {
		p.signal(syscall.SIGKILL) // whom it started and who stayed
	}
}

// signal reaches the child, and its group where it has one; an error means that
// nobody is there.
func (p *proc) signal(s syscall.Signal) {
	if p.group {
		_ = syscall.Kill(-p.pid(), s)
		return
	}
	_ = p.cmd.Process.Signal(s)
}

// ended is an error that says how the child ended, nil while it runs.
func (p *proc) ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s: ended (%v) while it was needed; %s", p.name, p.err, p.logTail())
	default:
		return nil
	}
}

// The end of a log that an error shows: so many lines, each cut to so many bytes.
const (
	tailLines = 3
	tailLine  = 160
)

// logTail is the end of the child's log, for an error: of what it says to people, where
// it says something; records are JSON.
func (p *proc) logTail() string {
	text, err := os.ReadFile(p.log)
	if err != nil || len(text) == 0 {
		return "nothing in " + p.log
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	said := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return strings.HasPrefix(line, "{") })
	if len(said) > 0 {
		lines = said
	}
	lines = lines[max(0, len(lines)-tailLines):]
	for i, line := range lines {
		if len(line) > tailLine {
			lines[i] = strings.ToValidUTF8(line[:tailLine], "") + "..."
		}
	}
	return fmt.Sprintf("the end of %s: %s", p.log, strings.Join(lines, " | "))
}
