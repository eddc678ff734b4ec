//go:build linux && (amd64 || arm64)

package arrival

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// pair is both ends of a connection over loopback; the first keeps stamps.
func pair(t *testing.T) (stamped, peer net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if peer, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if stamped, err = Listen(l).Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stamped.Close(); peer.Close() })
	if Of(stamped) == nil {
		t.Fatalf("got %T without a clock, want one: this kernel stamps no packets", stamped)
	}
	// The kernel begins with it a moment after the first socket has asked.
	for end := time.Now().Add(time.Minute); Of(stamped).came.Load() == 0; {
		if time.Now().After(end) {
			t.Fatal("got no stamp in a minute")
		}
		send(t, peer, "warm")
		if _, err := io.ReadFull(stamped, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
	}
	return stamped, peer
}

func send(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		t.Fatal(err)
	}
}

func TestAgeIsHowLongBytesLayInTheKernel(t *testing.T) {
	const lay = time.Second / 2
	c, peer := pair(t)
	before := time.Now()
	send(t, peer, "abc")
	time.Sleep(lay) // what is measured is that they lie
	buf := make([]byte, 10)
	if n, err := c.Read(buf); n != 3 || err != nil {
		t.Fatalf("got %d, %v", n, err)
	}
	if got := Of(c).Age(); got < lay || got > time.Since(before) {
		t.Errorf("got an age of %v, want %v to %v", got, lay, time.Since(before))
	}
	// Bytes that come into a read that waits have no such age.
	go func() {
		time.Sleep(lay) // likewise
		_, _ = io.WriteString(peer, "abc")
	}()
	if _, err := c.Read(buf); err != nil {
		t.Fatal(err)
	}
	if got := Of(c).Age(); got <= 0 || got > lay {
		t.Errorf("got an age of %v, want more than 0 and none of the %v before they were sent", got, lay)
	}
}

// TestReadOfOneByteTellsNothing: net/http reads one byte ahead to see whether its
// client has left.
func TestReadOfOneByteTellsNothing(t *testing.T) {
	c, peer := pair(t)
	send(t, peer, "abc")
	if _, err := io.ReadFull(c, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	came := Of(c).came.Load()
	send(t, peer, "d")
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil || came == 0 || Of(c).came.Load() != came {
		t.Errorf("got %d (%v), want the %d of the read before", Of(c).came.Load(), err, came)
	}
}

// TestReadsEndAsThoseOfAPlainConnection: callers look at these errors.
func TestReadsEndAsThoseOfAPlainConnection(t *testing.T) {
	for name, end := range map[string]func(c, peer net.Conn){
		"the other end closed":  func(_, peer net.Conn) { peer.Close() },
		"the other end resets":  func(_, peer net.Conn) { _ = peer.(*net.TCPConn).SetLinger(0); peer.Close() },
		"this end closed":       func(c, _ net.Conn) { c.Close() },
		"a deadline gone by":    func(c, _ net.Conn) { _ = c.SetReadDeadline(time.Unix(1, 0)) },
		"no room for any bytes": func(_, peer net.Conn) { peer.Close() },
	} {
		c, peer := pair(t)
		plain, plainsPeer := pair(t)
		plain = plain.(*conn).TCPConn
		room := 8
		if name == "no room for any bytes" {
			room = 0
		}
		var got, want error
		for _, end1 := range []struct {
			c, peer net.Conn
			err     *error
		}{{c, peer, &got}, {plain, plainsPeer, &want}} {
			read := make(chan error)
			go func() {
				_, err := end1.c.Read(make([]byte, room))
				read <- err
			}()
			end(end1.c, end1.peer)
			*end1.err = <-read
		}
		var gotNet, wantNet net.Error
		if errors.As(got, &gotNet) != errors.As(want, &wantNet) || gotNet != nil && gotNet.Timeout() != wantNet.Timeout() {
			t.Errorf("%s: got %#v, want %#v", name, got, want)
		}
		for _, is := range []error{io.EOF, net.ErrClosed, os.ErrDeadlineExceeded} {
			if errors.Is(got, is) != errors.Is(want, is) {
				t.Errorf("%s: got %v, want %v", name, got, want)
			}
		}
		var gotOp, wantOp *net.OpError
		if errors.As(got, &gotOp) != errors.As(want, &wantOp) || gotOp != nil && (gotOp.Op != wantOp.Op || gotOp.Err.Error() != wantOp.Err.Error()) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}

func TestConnectionReadsOnAfterADeadline(t *testing.T) {
	c, peer := pair(t)
	_ = c.SetReadDeadline(time.Unix(1, 0))
	if _, err := c.Read(make([]byte, 8)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got %v, want a deadline", err)
	}
	_ = c.SetReadDeadline(time.Time{})
	send(t, peer, "abc")
	if n, err := c.Read(make([]byte, 8)); n != 3 || err != nil {
		t.Errorf("got %d, %v, want 3 bytes", n, err)
	}
}

// TestBytesPassInOrderHoweverTheyAreCut has both directions busy, and deadlines set
// meanwhile, as net/http does.
func TestBytesPassInOrderHoweverTheyAreCut(t *testing.T) {
	c, peer := pair(t)
	src := rand.New(rand.NewPCG(1, 2))
	want := make([]byte, 4<<20)
	for i := range want {
		want[i] = byte(src.Uint32())
	}
	cut := func(r *rand.Rand) int { return 1 + r.IntN(1<<r.IntN(17)) }
	var all sync.WaitGroup
	for i, ends := range [][2]net.Conn{{peer, c}, {c, peer}} {
		all.Go(func() {
			r := rand.New(rand.NewPCG(3, uint64(i)))
			for rest := want; len(rest) > 0; {
				n, err := ends[0].Write(rest[:min(len(rest), cut(r))])
				if err != nil {
					t.Error(err)
					return
				}
				rest = rest[n:]
				_ = ends[0].SetReadDeadline(time.Now().Add(time.Minute))
			}
		})
		all.Go(func() {
			r := rand.New(rand.NewPCG(4, uint64(i)))
			var got []byte
			for len(got) < len(want) {
				b := make([]byte, cut(r))
				n, err := ends[1].Read(b)
				if err != nil {
					t.Error(err)
					return
				}
				got = append(got, b[:n]...)
				_ = Of(ends[1]).Age()
			}
			if !bytes.Equal(got, want) {
				t.Error("got other bytes than were sent")
			}
		})
	}
	all.Wait()
}

func TestReadTakesNoMemory(t *testing.T) {
	c, peer := pair(t)
	buf, b := make([]byte, 64), []byte("abc")
	if n := testing.AllocsPerRun(100, func() {
		_, _ = peer.Write(b)
		_, _ = c.Read(buf)
		_ = Of(c).Age()
	}); n >= 1 {
		t.Errorf("got %v allocations a read, want none", n)
	}
}

func TestUnixSocketsHaveNoStamps(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := Stamped(c); got != c || Of(got) != nil {
		t.Errorf("got %T, want the connection itself", got)
	}
}

// TestLookEndsWithTheConnectionAndNotWithANextRequest: whether it closes or resets.
func TestLookEndsWithTheConnectionAndNotWithANextRequest(t *testing.T) {
	for name, leave := range map[string]func(c *net.TCPConn){
		"closes":      func(c *net.TCPConn) { c.Close() },
		"resets":      func(c *net.TCPConn) { _ = c.SetLinger(0); c.Close() },
		"half closes": func(c *net.TCPConn) { _ = c.CloseWrite() },
	} {
		c, peer := pair(t)
		Of(c).Served()
		looked := make(chan error, 1)
		look := func() {
			_, err := c.Read(make([]byte, 1))
			looked <- err
		}
		go look()
		send(t, peer, "next")
		// A deadline ends it, and nothing that came is lost.
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if err := <-looked; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("%s: got %v, want a deadline: the next request is none of its business", name, err)
		}
		_ = c.SetReadDeadline(time.Time{})
		go look()
		leave(peer.(*net.TCPConn))
		select {
		case err := <-looked:
			if err == nil {
				t.Errorf("%s: got a byte, want an end", name)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: not noticed", name)
		}
		Of(c).Done()
		if name == "resets" {
			continue // the kernel has thrown it away
		}
		buf := make([]byte, 4)
		if _, err := io.ReadFull(c, buf[:1]); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := io.ReadFull(c, buf[1:]); err != nil || string(buf) != "next" {
			t.Errorf("%s: got %q, %v, want what had come", name, buf, err)
		}
	}
}
