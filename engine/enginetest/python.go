package enginetest

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"testing"
)

// Peer is a script that plays an engine's process: it takes a command a line on
// its standard input and answers each with a line.
type Peer struct {
	// Process is the script's, for its number and for signals.
	Process *os.Process
	// T is the test that it runs for.
	T *testing.T

	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// Python is the python3 that is installed; without one the test is skipped.
func Python(t *testing.T) string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	return python
}

// Start starts a script and waits until it is ready. The test's end ends it.
func Start(t *testing.T, args ...string) *Peer {
	t.Helper()
	cmd := exec.Command(Python(t), args...)
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
	p := &Peer{Process: cmd.Process, T: t, cmd: cmd, in: in, out: bufio.NewScanner(out)}
	p.out.Buffer(nil, 1<<20)
	t.Cleanup(p.Crash)
	p.Expect("ready")
	return p
}

// Hear reads the next line.
func (p *Peer) Hear() string {
	p.T.Helper()
	if !p.out.Scan() {
		p.T.Fatal("the peer is gone")
	}
	return p.out.Text()
}

// Expect reads the next line, which must be want.
func (p *Peer) Expect(want string) {
	p.T.Helper()
	if got := p.Hear(); got != want {
		p.T.Fatalf("peer said %q, want %q", got, want)
	}
}

// Say sends a command.
func (p *Peer) Say(command string) {
	p.T.Helper()
	if _, err := io.WriteString(p.in, command+"\n"); err != nil {
		p.T.Fatal(err)
	}
}

// Do sends a command and reads its answer, which must be want.
func (p *Peer) Do(command, want string) {
	p.T.Helper()
	p.Say(command)
	p.Expect(want)
}

// Crash ends the peer without a word and waits for its end.
func (p *Peer) Crash() {
	p.in.Close()
	_ = p.cmd.Wait()
}
