package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a child that ends with the tests: by SIGTERM to its own group, then
// by SIGKILL.
type process struct {
	cmd   *exec.Cmd
	log   string // file with its stderr, and its stdout where nobody reads it
	ended chan struct{}
	once  sync.Once
}

// start runs a command at low priority, so that what measures time comes first.
// The pipe to its stdin closes when the tests die.
func start(name string, env []string, stdout io.Writer, command ...string) (*process, error) {
	log := filepath.Join(shared.dir, name+".log")
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	cmd := exec.Command("nice", append([]string{"-n", "5"}, command...)...)
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr, cmd.Stdout = file, file
	if stdout != nil {
		cmd.Stdout = stdout
	}
	if _, err := cmd.StdinPipe(); err != nil {
		return nil, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, log: log, ended: make(chan struct{})}
	go func() { // ends when the child does; stop waits for it
		_ = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// stop ends the child and its own children.
func (p *process) stop() {
	p.once.Do(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGTERM)
		select {
		case <-p.ended:
		case <-time.After(20 * time.Second):
		}
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.ended
	})
}

// tail is the end of the log, for failures.
func (p *process) tail() string {
	b, _ := os.ReadFile(p.log)
	return string(b[max(0, len(b)-3000):])
}

// until polls what until it is true, the process ends or the time is up. It
// waits on other processes, which no clock of ours can move.
func until(p *process, limit, every time.Duration, what func() bool) error {
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for !what() {
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v", limit)
		}
		select {
		case <-p.ended:
			return errors.New("the process ended")
		case <-tick.C:
		}
	}
	return nil
}

// freePort is a loopback port that nobody listens on.
func freePort() int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// get is a body, or "" for anything but a 200.
func get(url string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return ""
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return ""
	}
	return string(b)
}

// python is the interpreter of an environment. Without one the test is skipped,
// with a line that says how to get it; in CI it fails.
func python(t *testing.T, variable, kind string) string {
	t.Helper()
	p := os.Getenv(variable)
	switch {
	case p != "":
		return p
	case os.Getenv("CI") == "true":
		t.Fatalf("%s is not set; run `make test`", variable)
	}
	t.Skipf("%s is not set: run `make test`, or set it to the output of scripts/pyenv %s", variable, kind)
	return ""
}

// lines splits what a child printed.
func lines(s string) []string { return strings.Split(strings.TrimSpace(s), "\n") }
