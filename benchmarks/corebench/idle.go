package corebench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// userHZ is the unit of the times in /proc/PID/stat on every Linux that Go
// supports.
const userHZ = 100

// stopGrace is SIGTERM to SIGKILL, readyLimit the wait for a ready line.
const (
	stopGrace  = 5 * time.Second
	readyLimit = 20 * time.Second
)

// idleCost starts an idle emulator and the sidecar before it, lets them settle,
// and returns the sidecar's share of a core over the window.
func idleCost(ctx context.Context, cfg Config) (share float64, err error) {
	dir, err := os.MkdirTemp("", "lull-bench-core-")
	if err != nil {
		return 0, fmt.Errorf("bench core: %w", err)
	}
	defer os.RemoveAll(dir)
	engine, err := start(ctx, cfg.Exe, "emulate", "--listen", "127.0.0.1:0", "--pool", "256MiB", "--resident", "16MiB")
	if err != nil {
		return 0, err
	}
	defer engine.stop()
	path := filepath.Join(dir, "lull.yaml")
	if err := os.WriteFile(path, []byte(sidecarYAML(dir, engine)), 0o600); err != nil {
		return 0, fmt.Errorf("bench core: %w", err)
	}
	sidecar, err := start(ctx, cfg.Exe, "serve", "--config", path)
	if err != nil {
		return 0, err
	}
	defer sidecar.stop()
	if err := pause(ctx, cfg.Settle); err != nil {
		return 0, err
	}
	before, err := cpuTicks(sidecar.cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := pause(ctx, cfg.Window); err != nil {
		return 0, err
	}
	took := time.Since(began)
	after, err := cpuTicks(sidecar.cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	return float64(after-before) / userHZ / took.Seconds(), nil
}

// sidecarYAML is a small device to lend, with no trainer connected yet; all that it does not say is at its default.
func sidecarYAML(dir string, engine *child) string {
	return fmt.Sprintf(`listen: "127.0.0.1:0"
state_dir: %q
admin: {listen: "127.0.0.1:0"}
devices:
  - {id: host0, kind: host, capacity: 512MiB, headroom: 16MiB}
engines:
  - {name: main, kind: emulator, url: "http://%s", devices: [host0], pid: %d}
trainers: {socket: %q}
`, filepath.Join(dir, "state"), engine.Listening, engine.cmd.Process.Pid, filepath.Join(dir, "s.sock"))
}

// cpuTicks is utime + stime of a process, in 1/userHZ s.
func cpuTicks(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("bench core: the sidecar has ended while it was measured: %w", err)
	}
	return parseTicks(string(text))
}

// parseTicks reads the 14th and 15th field; the 2nd, a name in brackets, may
// hold anything.
func parseTicks(stat string) (int64, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("bench core: stat %.80q: got %d fields after the name, want at least 13", stat, len(fields))
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("bench core: stat: utime: got %q, want a number", fields[11])
	}
	system, err := strconv.ParseInt(fields[12], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("bench core: stat: stime: got %q, want a number", fields[12])
	}
	return user + system, nil
}

// child is a started lull command.
type child struct {
	// Listening is its address, from its ready line.
	Listening string `json:"listening"`
	cmd       *exec.Cmd
	read      chan struct{} // closed when its output has ended
}

// start runs a verb of the program and waits for its ready line.
func start(ctx context.Context, exe string, args ...string) (*child, error) {
	c := &child{cmd: exec.CommandContext(ctx, exe, args...), read: make(chan struct{})}
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(syscall.SIGTERM) }
	c.cmd.WaitDelay = stopGrace
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C comes to it through ctx
	var log strings.Builder
	c.cmd.Stderr = &log
	out, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("bench core: start %s: %w", args[0], err)
	}
	c.cmd.Stdout = w
	err = c.cmd.Start()
	_ = w.Close() // the child has its own
	if err != nil {
		_ = out.Close()
		return nil, fmt.Errorf("bench core: start %s: %w", args[0], err)
	}
	lines := make(chan []byte, 1)
	go func() { // ends with the child's output
		defer close(c.read)
		defer out.Close()
		br := bufio.NewReader(out)
		line, _ := br.ReadBytes('\n')
		lines <- line
		_, _ = io.Copy(io.Discard, br)
	}()
	var line []byte
	select {
	case line = <-lines:
	case <-time.After(readyLimit):
	}
	if err := json.Unmarshal(line, c); err != nil || c.Listening == "" {
		c.stop()
		return nil, fmt.Errorf("bench core: start %s: got %q, want a ready line with \"listening\"; stderr: %s", args[0], line, log.String())
	}
	return c, nil
}

// stop ends the child and waits for it.
func (c *child) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(stopGrace, func() { _ = c.cmd.Process.Kill() })
	defer kill.Stop()
	<-c.read
	_ = c.cmd.Wait() // how it ended is no news
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
