package trainer

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// process starts one that lives until the test kills it, and says how.
func process(t *testing.T) (pid int, kill func()) {
	t.Helper()
	cmd := exec.Command("cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); _ = stdin.Close() }
	t.Cleanup(kill)
	return cmd.Process.Pid, kill
}

// listenTo is a server to which the named processes connect, in turn.
func listenTo(t *testing.T, pidfds bool, pids ...int) (*Server, *recorder) {
	t.Helper()
	next := make(chan int, len(pids))
	for _, pid := range pids {
		next <- pid
	}
	return listen(t, func(c *Config) {
		c.Heartbeat, c.Lease = 250*time.Millisecond, 5*time.Second
		c.peer = func(uintptr) (peer, error) {
			p := peer{PID: <-next}
			if pidfds && p.PID != 0 {
				p.pidfd = openPIDFD(-1, p.PID)
			}
			return p, nil
		}
	})
}

// wantTaken says hello and wants the no that another process gets.
func wantTaken(t *testing.T, srv *Server, owner int) {
	t.Helper()
	c := dial(t, srv)
	c.send(testHello())
	if got, want := c.read(), taken(Key{"gpt", 0, "cpu"}, owner).line(); got != Message(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	c.ended()
}

func TestNameOfALivingProcessIsRefusedToAnotherAfterItsSession(t *testing.T) {
	ends := map[string]struct {
		leave func(*client)
		why   Reason
	}{
		"bye":        {func(c *client) { c.send(Bye{}) }, GoneBye},
		"connection": {func(c *client) { _ = c.conn.Close() }, GoneEOF},
		"silence":    {func(*client) {}, GoneSilent},
	}
	for name, end := range ends {
		for _, pidfds := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				first, kill := process(t)
				srv, r := listenTo(t, pidfds, first, os.Getpid(), 0, os.Getpid())
				c, _ := join(t, srv, r)
				end.leave(c)
				if e := r.next(t, "gone"); e.why != end.why {
					t.Errorf("gone %s, want %s", e.why, end.why)
				}
				wantTaken(t, srv, first)
				wantTaken(t, srv, first) // nor to one that the kernel cannot name
				kill()
				join(t, srv, r)
				srv.mu.Lock()
				defer srv.mu.Unlock()
				if p := srv.owners[Key{"gpt", 0, "cpu"}]; p.PID != os.Getpid() {
					t.Errorf("owner %d, want %d", p.PID, os.Getpid())
				}
			})
		}
	}
}

func TestProcessComesBackUnderItsOwnName(t *testing.T) {
	srv, r := listen(t, nil)
	for range 3 {
		c, _ := join(t, srv, r)
		c.send(Bye{})
		r.next(t, "gone")
	}
}

func TestOwnersThatHaveEndedAreForgotten(t *testing.T) {
	first, kill := process(t)
	srv, r := listenTo(t, true, first, os.Getpid())
	c := dial(t, srv)
	h := testHello()
	h.Job = "other"
	c.send(h)
	c.read()
	r.next(t, "hello")
	kill()
	r.next(t, "gone")
	join(t, srv, r)
	srv.mu.Lock()
	n := len(srv.owners)
	srv.mu.Unlock()
	if n != 1 {
		t.Errorf("%d owners, want the living one", n)
	}
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	if len(srv.owners) != 0 {
		t.Errorf("%d owners after Close, want none", len(srv.owners))
	}
}

// Each name is kept for as long as its process lives, session or not.
func TestOneProcessHasABoundedNumberOfNames(t *testing.T) {
	srv, r := listen(t, nil)
	hello := func(job string) (*client, Message) {
		c := dial(t, srv)
		h := testHello()
		h.Job = job
		c.send(h)
		return c, c.read()
	}
	for i := range maxNames {
		c, m := hello(fmt.Sprint("job-", i))
		if _, ok := m.(Welcome); !ok {
			t.Fatalf("name %d: got %+v, want welcome", i, m)
		}
		c.send(Bye{})
		r.next(t, "hello")
		r.next(t, "gone")
	}
	want := ErrorLine{"session", "job", fmt.Sprintf("process %d has said hello under 64 names, want at most 64; they are free again when it has ended", os.Getpid())}
	for i := range 3 {
		c, m := hello(fmt.Sprint("more-", i))
		if m != Message(want) {
			t.Errorf("got %+v, want %+v", m, want)
		}
		c.ended()
	}
	if _, m := hello("job-7"); m.Type() != "welcome" {
		t.Errorf("got %+v, want welcome under a name that it has", m)
	}
	srv.mu.Lock()
	defer srv.mu.Unlock()
	if n := len(srv.owners); n != maxNames {
		t.Errorf("%d names are kept, want %d", n, maxNames)
	}
}
