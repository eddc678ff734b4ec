package trainer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// patient is how long a test waits for something that should come soon; it is
// long because the machine may be busy, and costs nothing when all is well.
const patient = 60 * time.Second

// event is one call of the Handler.
type event struct {
	s    *Session
	what string
	msg  Message
	why  Reason
}

// recorder is a Handler that passes its calls on.
type recorder struct {
	events chan event
	faults chan error
}

func newRecorder() *recorder {
	return &recorder{events: make(chan event, 4096), faults: make(chan error, 4096)}
}

func (r *recorder) Hello(s *Session, m Hello)          { r.events <- event{s, "hello", m, ""} }
func (r *recorder) Ack(s *Session, m Ack)              { r.events <- event{s, "ack", m, ""} }
func (r *recorder) FloorRequest(s *Session, m Request) { r.events <- event{s, "request", m, ""} }
func (r *recorder) Report(s *Session, m Report)        { r.events <- event{s, "report", m, ""} }
func (r *recorder) Gone(s *Session, why Reason)        { r.events <- event{s, "gone", nil, why} }

// next waits for the next call of the given kind; reports are skipped unless
// wanted.
func (r *recorder) next(t *testing.T, what string) event {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	for {
		select {
		case e := <-r.events:
			if e.what == "report" && what != "report" {
				continue
			}
			if e.what != what {
				t.Fatalf("handler got %s (%+v, %s), want %s", e.what, e.msg, e.why, what)
			}
			return e
		case <-ctx.Done():
			t.Fatalf("no %s in %v", what, patient)
		}
	}
}

func (r *recorder) fault(t *testing.T) string {
	t.Helper()
	select {
	case err := <-r.faults:
		return err.Error()
	case <-time.After(patient):
		t.Fatalf("no fault in %v", patient)
	}
	return ""
}

// listen starts a server on a fresh socket; change edits its config.
func listen(t *testing.T, change func(*Config)) (*Server, *recorder) {
	t.Helper()
	r := newRecorder()
	cfg := Config{
		// t.TempDir may be too long for a socket's path.
		Path: filepath.Join(shortDir(t), "lull.sock"), Session: 7,
		Fault: func(_ *Session, err error) { r.faults <- err },
	}
	if change != nil {
		change(&cfg)
	}
	srv, err := Listen(cfg, r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return srv, r
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lull")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// client is a trainer written by hand.
type client struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func dial(t *testing.T, srv *Server) *client {
	t.Helper()
	conn, err := net.Dial("unix", srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return newClient(t, conn)
}

func newClient(t *testing.T, conn net.Conn) *client {
	_ = conn.SetDeadline(time.Now().Add(patient))
	return &client{t, conn, bufio.NewReader(conn)}
}

func (c *client) write(text string) {
	c.t.Helper()
	if _, err := c.conn.Write([]byte(text)); err != nil {
		c.t.Fatalf("write %.60q: %v", text, err)
	}
}

func (c *client) send(m Message) {
	c.t.Helper()
	b, err := Encode(m)
	if err != nil {
		c.t.Fatal(err)
	}
	c.write(string(b))
}

// read returns the next message that is no ping.
func (c *client) read() Message {
	c.t.Helper()
	for {
		line, err := c.in.ReadBytes('\n')
		if err != nil {
			c.t.Fatalf("read: %v, want a line", err)
		}
		m, err := Decode(line)
		if err != nil {
			c.t.Fatalf("read %s: %v", line, err)
		}
		if _, ping := m.(Ping); !ping {
			return m
		}
	}
}

// ended reads until the connection ends.
func (c *client) ended() {
	c.t.Helper()
	for {
		if _, err := c.in.ReadBytes('\n'); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				c.t.Fatalf("the connection is open after %v, want it closed", patient)
			}
			return
		}
	}
}

func testHello() Hello {
	return Hello{Version: Version, Job: "gpt", World: 1, PID: int64(os.Getpid()), Device: "cpu", Ceiling: 100, Held: 50}
}

// join says hello and waits for welcome and the handler's Hello.
func join(t *testing.T, srv *Server, r *recorder) (*client, *Session) {
	t.Helper()
	c := dial(t, srv)
	c.send(testHello())
	if m, ok := c.read().(Welcome); !ok || m.Session != 7 {
		t.Fatalf("got %+v, want welcome of session 7", m)
	}
	return c, r.next(t, "hello").s
}

func TestHelloIsWelcomedAndMessagesArriveInOrder(t *testing.T) {
	srv, r := listen(t, nil)
	c, s := join(t, srv, r)
	if s.Key().String() != "gpt/0/cpu" || s.PID() != os.Getpid() || s.Said().Ceiling != 100 {
		t.Errorf("session %v pid %d said %+v", s.Key(), s.PID(), s.Said())
	}
	if err := s.Send(Budget{Epoch: 7<<32 | 1, Bytes: 10, Within: time.Millisecond, Reason: "arrival"}); err != nil {
		t.Fatal(err)
	}
	if m := c.read(); m != (Budget{Epoch: 7<<32 | 1, Bytes: 10, Within: time.Millisecond, Reason: "arrival"}) {
		t.Errorf("got %+v", m)
	}
	for i := range 100 {
		c.send(Ack{Epoch: uint64(i), How: "drop"})
	}
	c.send(Request{Floor: 5})
	for i := range 100 {
		if e := r.next(t, "ack"); e.msg.(Ack).Epoch != uint64(i) {
			t.Fatalf("ack %+v, want epoch %d", e.msg, i)
		}
	}
	r.next(t, "request")
	if err := s.Send(Refused{Floor: 3, Reason: "capacity"}); err != nil {
		t.Fatal(err)
	}
	if m := c.read(); m != (Refused{Floor: 3, Reason: "capacity"}) {
		t.Errorf("got %+v", m)
	}
	c.send(Bye{})
	if e := r.next(t, "gone"); e.why != GoneBye {
		t.Errorf("gone %s, want %s", e.why, GoneBye)
	}
}

func TestBadLineIsAnsweredAndTheSessionLives(t *testing.T) {
	srv, r := listen(t, nil)
	c, _ := join(t, srv, r)
	for _, v := range readVectors(t) {
		if v.Error == nil {
			continue
		}
		c.write(v.Wire + "\n")
		if m := c.read(); m != ErrorLine(*v.Error) {
			t.Errorf("%s: answered with %+v, want %+v", v.Wire, m, *v.Error)
		}
	}
	c.write(`{"type":"welcome","version":1,"session":1,"heartbeat_ms":1,"lease_ms":1}` + "\n")
	if m := c.read(); m != (ErrorLine{"welcome", "type", "a sidecar does not take it here"}) {
		t.Errorf("a trainer's welcome: %+v", m)
	}
	c.send(Ack{Epoch: 1, How: "nothing"})
	r.next(t, "ack")
}

func TestErrorLineIsReportedAndNotAnswered(t *testing.T) {
	srv, r := listen(t, nil)
	c, s := join(t, srv, r)
	c.send(ErrorLine{"budget", "bytes", "missing"})
	if got, want := r.fault(t), "trainer: gpt/0/cpu refused a line: budget bytes: missing"; got != want {
		t.Errorf("fault %q, want %q", got, want)
	}
	if err := s.Send(Drain{Reason: "next"}); err != nil {
		t.Fatal(err)
	}
	if m := c.read(); m != (Drain{Reason: "next"}) {
		t.Errorf("got %+v, want the drain alone", m)
	}
}

func TestLineInPiecesIsOneLine(t *testing.T) {
	srv, r := listen(t, nil)
	c, _ := join(t, srv, r)
	line := `{"type":"ack","epoch":9,"held":1,"waited_us":0,"freed_us":0,"how":"drop"}` + "\n"
	for i := range line {
		c.write(line[i : i+1])
	}
	if e := r.next(t, "ack"); e.msg.(Ack).Epoch != 9 {
		t.Errorf("got %+v", e.msg)
	}
	c.write(line[:20]) // half a line at the end says nothing
	_ = c.conn.Close()
	if e := r.next(t, "gone"); e.why != GoneEOF {
		t.Errorf("gone %s, want %s", e.why, GoneEOF)
	}
}

func TestGarbageBeyondTheLimitClosesTheSession(t *testing.T) {
	srv, r := listen(t, nil)
	c, _ := join(t, srv, r)
	c.write(strings.Repeat("x", MaxLine+1))
	if m, ok := c.read().(ErrorLine); !ok || m.Where != "length" {
		t.Errorf("got %+v, want an error line about the length", m)
	}
	c.ended()
	if e := r.next(t, "gone"); e.why != GoneGarbage {
		t.Errorf("gone %s, want %s", e.why, GoneGarbage)
	}
}

func TestHelloComesFirstAndAnotherVersionIsRefused(t *testing.T) {
	srv, r := listen(t, nil)
	c := dial(t, srv)
	c.send(Ack{How: "drop"})
	if m := c.read(); m != (ErrorLine{"ack", "type", "hello comes first; of the job lull-doctor it makes no trainer"}) {
		t.Errorf("got %+v", m)
	}
	h := testHello()
	h.Version = 2
	c.send(h)
	if m := c.read(); m != (ErrorLine{"hello", "version", "got 2, want 1"}) {
		t.Errorf("got %+v", m)
	}
	c.send(testHello())
	if _, ok := c.read().(Welcome); !ok {
		t.Error("no welcome after a hello with the right version")
	}
	r.next(t, "hello")
}

func TestConnectionWithoutHelloIsClosed(t *testing.T) {
	srv, r := listen(t, func(c *Config) { c.HelloTimeout = 20 * time.Millisecond })
	c := dial(t, srv)
	if m, ok := c.read().(ErrorLine); !ok || !strings.HasPrefix(m.Rule, "none came: ") {
		t.Errorf("got %+v, want an error line", m)
	}
	c.ended()
	if got := r.fault(t); !strings.HasPrefix(got, "trainer: refuse hello line: none came: ") {
		t.Errorf("fault %q", got)
	}
}

func TestReconnectOfTheSameProcessSupersedesTheOldSession(t *testing.T) {
	srv, r := listen(t, nil)
	old, s := join(t, srv, r)
	again := dial(t, srv)
	again.send(testHello())
	if e := r.next(t, "gone"); e.s != s || e.why != GoneSuperseded {
		t.Errorf("gone %s, want the old session superseded", e.why)
	}
	r.next(t, "hello")
	old.ended()
	if err := s.Send(Budget{Epoch: 7<<32 | 3}); !errors.Is(err, ErrGone) {
		t.Errorf("send on the old session: %v, want ErrGone", err)
	}
	if err := s.Send(Budget{Epoch: 7<<32 | 3}); err.Error() != "trainer: send budget to gpt/0/cpu epoch=7.3: "+
		"the session has ended; its bytes count until the device shows them gone" {
		t.Errorf("error %q", err)
	}
}

func TestNameOfALivingProcessIsRefusedToAnother(t *testing.T) {
	pids := make(chan int, 2)
	pids <- 100
	pids <- 200
	srv, r := listen(t, func(c *Config) {
		c.peer = func(uintptr) (peer, error) { return peer{PID: <-pids}, nil }
	})
	_, s := join(t, srv, r)
	other := dial(t, srv)
	other.send(testHello())
	m, _ := other.read().(ErrorLine)
	if m.What != "session" || m.Where != "job" ||
		m.Rule != "trainer gpt/0/cpu is process 100, which is alive; want another job name or rank" {
		t.Errorf("got %+v", m)
	}
	other.ended()
	if err := s.Send(Drain{}); err != nil {
		t.Errorf("the older session: %v, want it alive", err)
	}
}

func TestOtherRanksAndDevicesAreOtherSessions(t *testing.T) {
	srv, r := listen(t, nil)
	join(t, srv, r)
	for _, h := range []Hello{{Rank: 1, Device: "cpu"}, {Rank: 0, Device: "cuda:1"}} {
		h.Version, h.Job, h.World = Version, "gpt", 2
		c := dial(t, srv)
		c.send(h)
		c.read()
		if e := r.next(t, "hello"); e.msg.(Hello).Rank != h.Rank {
			t.Errorf("hello %+v, want %+v", e.msg, h)
		}
	}
}

func TestSilentTrainerIsGoneAndAnAnsweringOneIsNot(t *testing.T) {
	srv, r := listen(t, func(c *Config) { c.Heartbeat = 300 * time.Millisecond; c.Lease = 10 * time.Second })
	c, _ := join(t, srv, r)
	for range 6 { // longer than a silent one lives
		line, err := c.in.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		m, err := Decode(line)
		if err != nil {
			t.Fatal(err)
		}
		c.send(Pong{Seq: m.(Ping).Seq})
	}
	if e := r.next(t, "gone"); e.why != GoneSilent {
		t.Errorf("gone %s, want %s", e.why, GoneSilent)
	}
}

func TestCloseSaysByeAndGone(t *testing.T) {
	srv, r := listen(t, nil)
	c, _ := join(t, srv, r)
	dial(t, srv) // has not said hello
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	if m := c.read(); m != (Bye{Reason: "the sidecar closes"}) {
		t.Errorf("got %+v", m)
	}
	c.ended()
	if e := r.next(t, "gone"); e.why != GoneClosed {
		t.Errorf("gone %s, want %s", e.why, GoneClosed)
	}
	if _, err := os.Lstat(srv.Addr()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket file after Close: %v, want it removed", err)
	}
}

func TestSendRefusesWhatASidecarDoesNotSend(t *testing.T) {
	srv, r := listen(t, nil)
	_, s := join(t, srv, r)
	want := "trainer: send hello: a sidecar does not send it; the line is not sent"
	if err := s.Send(testHello()); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	want = "trainer: send budget to gpt/0/cpu epoch=0.1: trainer: encode budget: bytes is negative; the line is not sent"
	if err := s.Send(Budget{Epoch: 1, Bytes: -1}); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestManySessionsAtOnce(t *testing.T) {
	srv, r := listen(t, nil)
	const n = 32
	var wg sync.WaitGroup
	for i := range n {
		c := dial(t, srv)
		wg.Go(func() {
			h := testHello()
			h.Job = fmt.Sprint("job-", i)
			c.send(h)
			c.read()
			c.send(Bye{})
		})
	}
	wg.Wait()
	hello, gone := 0, 0
	for hello < n || gone < n {
		select {
		case e := <-r.events:
			switch e.what {
			case "hello":
				hello++
			case "gone":
				gone++
			}
		case <-time.After(patient):
			t.Fatalf("%d hello and %d gone, want %d each", hello, gone, n)
		}
	}
}
