package engine

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"testing"
)

// peer is an engine's side of shared memory in a Python process: a line in, a line
// out.
type peer struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func findPython(t *testing.T) string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	return python
}

// startPython starts a script and waits until it is ready.
func startPython(t *testing.T, args ...string) *peer {
	t.Helper()
	cmd := exec.Command(findPython(t), args...)
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
	p := &peer{t: t, cmd: cmd, in: in, out: bufio.NewScanner(out)}
	p.out.Buffer(nil, 1<<20)
	t.Cleanup(p.crash)
	p.expect("ready")
	return p
}

func (p *peer) expect(want string) {
	p.t.Helper()
	if !p.out.Scan() || p.out.Text() != want {
		p.t.Fatalf("peer said %q, want %q", p.out.Text(), want)
	}
}

func (p *peer) say(command string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, command+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) do(command, want string) {
	p.t.Helper()
	p.say(command)
	p.expect(want)
}

// crash ends the peer without a word and waits for its end.
func (p *peer) crash() {
	p.in.Close()
	_ = p.cmd.Wait()
}
