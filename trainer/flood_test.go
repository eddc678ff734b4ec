package trainer

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/size"
)

// stopped is a clock that stands still.
func stopped(c *Config) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	c.now = func() time.Time { return at }
}

func TestFloodOfAdviceIsDroppedAndCountedAndAcksArriveAllTheSame(t *testing.T) {
	report := Report{Bytes: map[string]size.Bytes{}}
	for name, flood := range map[string]struct {
		line string
		what string // the handler's call, "" for none
		pass int
	}{
		"reports":  {mustEncode(t, report), "report", mostPerSecond},
		"requests": {mustEncode(t, Request{Floor: 5}), "request", mostPerSecond},
		"garbage":  {"garbage\n", "", 0},
		"errors":   {mustEncode(t, ErrorLine{"budget", "bytes", "missing"}), "", 0},
		"hellos":   {mustEncode(t, testHello()), "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			srv, r := listen(t, stopped)
			c, s := join(t, srv, r)
			go func() { // what it says is read, so that it may go on; ends with the connection
				for {
					if _, err := c.in.ReadBytes('\n'); err != nil {
						return
					}
				}
			}()
			const rounds, each = 10, 40
			for i := range rounds {
				c.write(strings.Repeat(flood.line, each))
				c.send(Ack{Epoch: uint64(i), How: "drop"})
				c.send(Pong{Seq: int64(i)})
			}
			passed, acks := 0, 0
			for acks < rounds {
				select {
				case e := <-r.events:
					switch e.what {
					case "ack":
						if e.msg.(Ack).Epoch != uint64(acks) {
							t.Errorf("ack %+v, want epoch %d", e.msg, acks)
						}
						acks++
					case flood.what:
						passed++
					default:
						t.Fatalf("handler got %s", e.what)
					}
				case <-time.After(patient):
					t.Fatalf("%d acks, want %d", acks, rounds)
				}
			}
			if passed != flood.pass {
				t.Errorf("%d passed, want %d", passed, flood.pass)
			}
			bad, said := 0, 0
			want := fmt.Sprintf("trainer: %s sends more than 50 requests, 50 reports or 100 bad lines a second, 1 of them dropped so far; acks and pongs are still taken", s.Key())
			for len(r.faults) > 0 {
				if err := <-r.faults; err.Error() == want {
					said++
				} else {
					bad++
				}
			}
			if said != 1 || flood.what == "" && bad != mostBad || flood.what != "" && bad != 0 {
				t.Errorf("%d faults say that lines are dropped, %d that they are bad", said, bad)
			}
		})
	}
}

func TestFloodIsSaidOnceASecondWithItsCount(t *testing.T) {
	now := time.Unix(100, 0)
	var said []string
	s := &Session{key: Key{"gpt", 0, "cpu"}, srv: &Server{cfg: Config{
		now: func() time.Time { return now }, Fault: func(_ *Session, err error) { said = append(said, err.Error()) },
	}}}
	for range 3 {
		for range 300 {
			if s.flood.drops(Report{}, now) {
				s.drop()
			}
		}
		now = now.Add(time.Second)
	}
	if len(said) != 3 || !strings.Contains(said[1], ", 250 of them dropped so far;") {
		t.Errorf("said %q, want three lines, the second of which counts 250", said)
	}
	if s.flood.drops(Report{}, now) {
		t.Error("a report of the next second is dropped")
	}
}

func TestSessionThatSendsWithoutEndWaitsForItsNextSecondAndLosesNothing(t *testing.T) {
	srv, r := listen(t, nil)
	c, _ := join(t, srv, r)
	const n = 2*mostLines + 10
	start := time.Now()
	go func() { // ends when all is written
		line := []byte(mustEncode(t, Ack{Epoch: 1, How: "drop"}))
		for range n {
			_, _ = c.conn.Write(line)
		}
	}()
	for range n {
		r.next(t, "ack")
	}
	if took := time.Since(start); took < time.Second {
		t.Errorf("%d lines were read in %v, want %d a second", n, took, mostLines)
	}
}

func TestConnectionThatNeverSaysHelloIsClosedAfterSomeLines(t *testing.T) {
	srv, _ := listen(t, nil)
	c := dial(t, srv)
	c.write(strings.Repeat("garbage\n", mostBad+1))
	for range mostBad {
		if m := c.read(); m.(ErrorLine).Where != "json" {
			t.Fatalf("got %+v", m)
		}
	}
	if m := c.read(); m != Message(ErrorLine{"hello", "line", "none came in 100 lines; the connection is closed"}) {
		t.Errorf("got %+v", m)
	}
	c.ended()
}

func mustEncode(t *testing.T, m Message) string {
	t.Helper()
	b, err := Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
