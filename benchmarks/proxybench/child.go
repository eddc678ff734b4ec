package proxybench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/lull-project/lull/proxy"
	"github.com/lull-project/lull/proxy/arrival"
)

// roleEnv tells a program started again which part it plays.
const roleEnv = "LULL_PROXYBENCH_ROLE"

// role is one child's part; Upstream is the address it forwards to.
type role struct {
	Name     string        `json:"name"`
	Upstream string        `json:"upstream,omitempty"`
	Events   int           `json:"events,omitempty"`
	Gap      time.Duration `json:"gap,omitempty"`
}

// Child plays the part that this process was started for and returns true when
// it is over, which is when the parent has closed its standard input; then the
// program ends. It returns false at once in any other process.
func Child() bool {
	v := os.Getenv(roleEnv)
	if v == "" {
		return false
	}
	var r role
	if err := json.Unmarshal([]byte(v), &r); err != nil {
		fmt.Fprintf(os.Stderr, "proxybench: %s: got %q, want a role as JSON: %v\n", roleEnv, v, err)
		return true
	}
	if err := r.play(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "proxybench: child %s: %v\n", r.Name, err)
	}
	return true
}

// play serves until in ends, and says on out where; it reports for each line of
// in.
func (r role) play(in io.Reader, out io.Writer) error {
	o := &open{}
	handler, err := r.handler(o)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: handler}
	if r.Name == armLull { // as the sidecar runs it
		srv, l = proxy.Server(handler), arrival.Listen(l)
	}
	srv.ErrorLog = log.New(io.Discard, "", 0)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }() // ends when srv is closed
	fmt.Fprintln(out, l.Addr())
	err = r.answer(in, out, o)
	_ = srv.Close()
	<-served
	return err
}

// child is a running process of ours.
type child struct {
	addr   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	log    *strings.Builder
}

// start starts this program again in a role, behind another command's words if
// there are any, and waits until it listens.
func start(ctx context.Context, r role, under ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("bench proxy: start %s: %w", r.Name, err)
	}
	env, _ := json.Marshal(r) // plain fields always marshal
	words := append(slices.Clone(under), self)
	c := &child{cmd: exec.CommandContext(ctx, words[0], words[1:]...), log: &strings.Builder{}}
	c.cmd.Env = append(os.Environ(), roleEnv+"="+string(env))
	c.cmd.Stderr = c.log
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("bench proxy: start %s: %w", r.Name, err)
	}
	c.stdin = stdin
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("bench proxy: start %s: %w", r.Name, err)
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench proxy: start %s: %w", r.Name, err)
	}
	c.stdout = bufio.NewReader(stdout)
	line, err := c.stdout.ReadString('\n')
	c.addr = strings.TrimSpace(line)
	if _, _, serr := net.SplitHostPort(c.addr); err != nil || serr != nil {
		c.stop()
		return nil, fmt.Errorf("bench proxy: start %s: got %q, want its address; does the program call proxybench.Child first? stderr: %s", r.Name, line, c.log)
	}
	return c, nil
}

// stop ends the child and waits for it.
func (c *child) stop() {
	_ = c.stdin.Close()
	_ = c.cmd.Wait() // a child that is killed with the context says so; no news
}
