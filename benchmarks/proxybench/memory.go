package proxybench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/size"
)

const (
	// settle is how long connections that nobody uses may take to go: Lull keeps
	// them for less than a server's five seconds.
	settle = 20 * time.Second
	// slowEvents are the events of its answer: over 200 MB of them.
	slowEvents = 1_000_000
	// shortConnections carry the streams that come and go.
	shortConnections = 50
)

// memoryResult is what streams take of a proxy's memory (anonymous and shared
// pages of /proc/PID/status), in bytes.
type memoryResult struct {
	Open int `json:"open_streams"`
	// PerStream is the growth with all of them open, each of which has sent its
	// first events, by their number.
	PerStream size.Bytes `json:"bytes_per_open_stream"`
	Many      int        `json:"streams_come_and_gone"`
	// Before and After are those of the last four fifths of the streams.
	Before size.Bytes `json:"bytes_before"`
	After  size.Bytes `json:"bytes_after"`
	// Slow is the growth while a client does not read an answer of over 200 MB.
	Slow size.Bytes `json:"bytes_for_a_client_that_does_not_read"`
	// Goroutines before the first request, and once all connections are gone.
	Goroutines int `json:"goroutines_at_start"`
	Left       int `json:"goroutines_left"`
}

// measureMemory watches one proxy.
func measureMemory(ctx context.Context, cfg Config, name string, c *child, idle int) (memoryResult, error) {
	r := memoryResult{Open: cfg.OpenStreams, Many: cfg.ManyStreams, Goroutines: idle}
	mem, err := device.Open(c.cmd.Process.Pid)
	if err != nil {
		return r, fmt.Errorf("bench proxy: memory of %s: %w", name, err)
	}
	defer mem.Close()
	steps := []func() error{
		func() error { return shortStreams(ctx, name, c, 1000) }, // what is kept for ever is there after them
		func() error { r.PerStream, err = openStreams(ctx, name, c, cfg.OpenStreams, mem); return err },
		func() error { return shortStreams(ctx, name, c, cfg.ManyStreams/5) },
		func() error { r.Before, err = mem.Read(); return err },
		func() error { return shortStreams(ctx, name, c, cfg.ManyStreams-cfg.ManyStreams/5) },
		func() error { r.After, err = mem.Read(); return err },
		func() error { r.Slow, err = slowReader(ctx, name, c, cfg.Unread, mem); return err },
		func() error { r.Left, err = gone(ctx, c, idle); return err },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return r, fmt.Errorf("bench proxy: memory of %s: %w", name, err)
		}
	}
	return r, nil
}

func streamTarget(name string, c *child, events int, gap time.Duration) target {
	return target{arm: name, addr: c.addr, query: "?events=" + strconv.Itoa(events) + "&gap=" + gap.String(), prompt: 200, events: events}
}

// shortStreams sends n streams of two events.
func shortStreams(ctx context.Context, name string, c *child, n int) error {
	began := time.Time{}
	var taken atomic.Int64
	t, err := drive(ctx, streamTarget(name, c, 2, time.Millisecond), shortConnections, &began, func() (time.Time, bool, bool) {
		return time.Now(), false, taken.Add(1) <= int64(n)
	})
	if err == nil && t.failed > 0 {
		err = fmt.Errorf("%d of %d streams failed: %s", t.failed, t.sent, t.fault)
	}
	return err
}

// openStreams is the growth by a stream with n of them open.
func openStreams(ctx context.Context, name string, c *child, n int, mem *device.Process) (size.Bytes, error) {
	before, err := mem.Read()
	if err != nil {
		return 0, err
	}
	conns, errs := make([]*conn, n), make([]error, n)
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.close()
			}
		}
	}()
	each(n, func(i int) { conns[i], errs[i] = begun(ctx, streamTarget(name, c, 1000, 100*time.Millisecond)) })
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	after, err := mem.Read()
	return max(0, after-before) / size.Bytes(n), err
}

// begun is a connection whose stream has begun.
func begun(ctx context.Context, to target) (*conn, error) {
	c, err := dial(ctx, to)
	if err != nil {
		return nil, err
	}
	if _, err = c.net.Write(c.request); err == nil {
		_, err = c.br.ReadString('}') // inside its first event
	}
	if err != nil {
		c.close()
		return nil, fmt.Errorf("begin a stream: %w", err)
	}
	return c, nil
}

// slowReader is the most that the proxy grows while a client does not read.
func slowReader(ctx context.Context, name string, c *child, watch time.Duration, mem *device.Process) (size.Bytes, error) {
	before, err := mem.Read()
	if err != nil {
		return 0, err
	}
	slow, err := begun(ctx, streamTarget(name, c, slowEvents, 0))
	if err != nil {
		return 0, err
	}
	defer slow.close()
	most := size.Bytes(0)
	for end := time.Now().Add(watch); time.Now().Before(end); {
		now, err := mem.Read()
		if err != nil {
			return 0, err
		}
		most = max(most, now-before)
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return 0, err
		}
	}
	return most, nil
}

// gone is how many goroutines more than idle are left once they stop falling, or
// after the settling time.
func gone(ctx context.Context, c *child, idle int) (int, error) {
	for end := time.Now().Add(settle); ; {
		r, err := c.ask()
		if err != nil || r.Goroutines <= idle || time.Now().After(end) {
			return max(0, r.Goroutines-idle), err
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// printMemory is the part of the table.
func printMemory(w io.Writer, name string, m memoryResult) {
	fmt.Fprintf(w, "%s: %v for each of %d open streams; %v before and %v after %d streams; %v more beside a client that does not read; %d goroutines left of %d at the start\n",
		name, m.PerStream, m.Open, m.Before, m.After, m.Many-m.Many/5, m.Slow, m.Left, m.Goroutines)
}
