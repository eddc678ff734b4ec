package proxybench

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/lull-project/lull/proxy"
)

// selfReport is what a child says of itself when it is asked.
type selfReport struct {
	// CPU is the time on a core since its start, of user and system.
	CPU        time.Duration `json:"cpu_ns"`
	Goroutines int           `json:"goroutines"`
	// Overheads are those of the requests since the last report, Lull's only.
	Overheads []time.Duration `json:"overheads_ns"`
}

// report is one line of JSON.
func (r role) report(out io.Writer, o *open) error {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		return fmt.Errorf("getrusage: %w", err)
	}
	b, err := json.Marshal(selfReport{
		CPU:        time.Duration(use.Utime.Nano() + use.Stime.Nano()),
		Goroutines: runtime.NumGoroutine(), Overheads: o.take(),
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n", b)
	return err
}

// answer reports once for each line of in, until it ends.
func (r role) answer(in io.Reader, out io.Writer, o *open) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if err := r.report(out, o); err != nil {
			return err
		}
	}
	return lines.Err()
}

// ask gets a child's report. A child that cannot give one is stopped: what it wrote
// to stderr is whole only then.
func (c *child) ask() (selfReport, error) {
	var r selfReport
	_, err := io.WriteString(c.stdin, "report\n")
	var line []byte
	if err == nil {
		line, err = c.stdout.ReadBytes('\n')
	}
	if err != nil {
		c.stop()
		return r, fmt.Errorf("bench proxy: a child's report: %w; stderr: %s", err, c.log)
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return r, fmt.Errorf("bench proxy: a child's report: got %q: %w", line, err)
	}
	return r, nil
}

// mostOverheads bounds what a child keeps between two reports.
const mostOverheads = 1 << 16

// take empties what was kept.
func (o *open) take() []time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	kept := slices.Clone(o.overheads)
	o.overheads = o.overheads[:0]
	return kept
}

// Done keeps Lull's account of its own time.
func (o *open) Done(r proxy.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.overheads) < mostOverheads {
		o.overheads = append(o.overheads, r.Overhead)
	}
}

// open is the gate and the observer of a proxy in front of no ledger: it admits at
// once.
type open struct {
	mu        sync.Mutex
	overheads []time.Duration
}
