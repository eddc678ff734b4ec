package trainer

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// stuff fills the socket of a trainer that reads nothing.
func stuff(t *testing.T, s *Session) {
	t.Helper()
	for range 100 {
		err := s.Send(Drain{Reason: strings.Repeat("x", MaxLine/2)})
		if errors.Is(err, ErrLate) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("3 MiB unread and no ErrLate")
}

func TestTrainerThatDoesNotReadNeverBlocksSend(t *testing.T) {
	srv, r := listen(t, nil)
	c, s := join(t, srv, r)
	stuff(t, s)
	start := time.Now()
	const n = 1000
	for i := range n {
		err := s.Send(Budget{Epoch: 7<<32 | uint64(i), Bytes: 1, Reason: "grow"})
		var e *Error
		if !errors.Is(err, ErrLate) || !errors.As(err, &e) || e.Epoch != 7<<32|uint64(i) || e.Waited <= 0 {
			t.Fatalf("send %d: %v, want ErrLate with the epoch and the time waited", i, err)
		}
	}
	if took := time.Since(start); took > patient/4 {
		t.Errorf("%d sends took %v", n, took)
	}
	// When it reads again, of all these budgets only the newest comes.
	for {
		m := c.read()
		if _, drain := m.(Drain); drain {
			continue
		}
		if b, ok := m.(Budget); !ok || b.Epoch != 7<<32|(n-1) {
			t.Errorf("got %+v, want the newest budget alone", m)
		}
		break
	}
}

func TestLateErrorSaysHowLongAndWhatBecomesOfTheLine(t *testing.T) {
	e := &Error{Op: "send budget to gpt/0/cpu", Epoch: 7<<32 | 3, Waited: 12 * time.Millisecond, Err: ErrLate}
	want := "trainer: send budget to gpt/0/cpu epoch=7.3 for 12ms: " +
		"the trainer does not read its socket; the newest line of each kind is kept for it"
	if e.Error() != want {
		t.Errorf("got %s, want %s", e, want)
	}
}

func TestQueueIsBounded(t *testing.T) {
	srv, r := listen(t, nil)
	_, s := join(t, srv, r)
	stuff(t, s)
	for range 2 * maxQueued {
		if err := s.Send(Drain{}); errors.Is(err, ErrFull) {
			return
		}
	}
	t.Errorf("%d lines queued, want ErrFull", 2*maxQueued)
}

func TestBudgetThatReplacesAFloorGrantStillAnswersTheRequest(t *testing.T) {
	for _, after := range []int{1, 2, 5} {
		srv, r := listen(t, nil)
		c, s := join(t, srv, r)
		stuff(t, s)
		_ = s.Send(Budget{Epoch: 1, Bytes: 1, Reason: "floor", Floor: 9})
		for i := range after {
			_ = s.Send(Budget{Epoch: uint64(2 + i), Bytes: 2, Reason: "arrival", Floor: 9})
		}
		want := Budget{Epoch: uint64(1 + after), Bytes: 2, Reason: "floor", Floor: 9}
		for {
			if b, ok := c.read().(Budget); ok {
				if b != want {
					t.Errorf("after %d more: got %+v, want %+v", after, b, want)
				}
				break
			}
		}
	}
}

func TestNewerPaceReplacesAnUnsentYield(t *testing.T) {
	srv, r := listen(t, nil)
	c, s := join(t, srv, r)
	stuff(t, s)
	_ = s.Send(Yield{Lease: time.Second})
	_ = s.Send(Pace{Duty: 1})
	for {
		switch m := c.read().(type) {
		case Yield:
			t.Error("the replaced yield came")
		case Pace:
			return
		default:
			_ = m
		}
	}
}

func TestCloseEndsASessionWhoseTrainerDoesNotRead(t *testing.T) {
	srv, r := listen(t, nil)
	_, s := join(t, srv, r)
	stuff(t, s)
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	if e := r.next(t, "gone"); e.why != GoneClosed {
		t.Errorf("gone %s, want %s", e.why, GoneClosed)
	}
	<-s.Done()
}
