package arrival

import (
	"net"
	"testing"
	"time"
)

// TestStampsAreNotTrustedAcrossASetClock: a wall clock that is set must not turn a
// wait into time of Lull's own.
func TestStampsAreNotTrustedAcrossASetClock(t *testing.T) {
	const lay = 30 * time.Millisecond
	born := time.Now()
	for name, c := range map[string]struct {
		set   time.Duration // of the wall clock, before the second read
		stamp time.Duration // of the second read, against its wall clock
		known bool
	}{
		"a steady clock":            {0, -lay, true},
		"jitter":                    {jitter / 2, -lay, true},
		"set forward":               {time.Hour, -time.Hour - lay, false},
		"set a little forward":      {time.Millisecond, -lay, false},
		"set back":                  {-time.Hour, time.Hour - lay, false},
		"set back less than it lay": {-lay / 2, -lay / 2, false},
		"ahead of its reader":       {0, time.Nanosecond, false},
	} {
		clock := newClock(born)
		wall := func(since time.Duration) int64 { return born.UnixNano() + int64(since) }
		clock.read(time.Second, wall(time.Second), wall(time.Second))
		if clock.came.Load() != int64(time.Second) {
			t.Fatalf("%s: got %v for a first read, want the time of its stamp", name, time.Duration(clock.came.Load()))
		}
		now := wall(2*time.Second + c.set)
		clock.read(2*time.Second, now, now+int64(c.stamp))
		if got := clock.came.Load(); (got != 0) != c.known || c.known && got != int64(2*time.Second+c.stamp) {
			t.Errorf("%s: got %v, want known: %v", name, time.Duration(got), c.known)
		}
		// What comes after a step is known again.
		clock.read(3*time.Second, now+int64(time.Second), now+int64(time.Second)-int64(lay))
		if got := clock.came.Load(); got != int64(3*time.Second-lay) {
			t.Errorf("%s: got %v one read later, want %v", name, time.Duration(got), 3*time.Second-lay)
		}
	}
}

func TestAgeIsNothingWhereNothingIsKnown(t *testing.T) {
	var none *Clock
	none.Done()
	if got := none.Age(); got != 0 {
		t.Errorf("got %v of no clock, want 0", got)
	}
	c := newClock(time.Now().Add(-time.Hour))
	if got := c.Age(); got != 0 {
		t.Errorf("got %v before any read, want 0", got)
	}
	c.read(time.Second, c.born.UnixNano()+int64(time.Second), 0)
	if got := c.Age(); got != 0 {
		t.Errorf("got %v after a read without a stamp, want 0", got)
	}
}

func TestAgeRunsFromDoneWhereThatIsLater(t *testing.T) {
	c := newClock(time.Now().Add(-time.Hour))
	c.read(time.Second, c.born.UnixNano()+int64(time.Second), c.born.UnixNano()+int64(time.Second))
	if got := c.Age(); got < 59*time.Minute {
		t.Errorf("got %v, want the hour since the read", got)
	}
	c.Done()
	if got := c.Age(); got > time.Minute {
		t.Errorf("got %v, want what has passed since Done", got)
	}
}

func TestConnectionsWithoutStampsStayAsTheyAre(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if got := Stamped(a); got != a || Of(a) != nil {
		t.Errorf("got %T with a clock %v, want the pipe itself without one", got, Of(a))
	}
}
