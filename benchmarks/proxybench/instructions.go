package proxybench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	// countedRequests are sent one after another to a proxy under callgrind, once
	// with fewEvents and once with manyEvents in an answer: what differs is the
	// events, and starting, connecting and ending drop out.
	countedRequests = 5
	fewEvents       = 20
	manyEvents      = 220
	countedGap      = time.Millisecond
	// saidMost is how much of what callgrind said stands in an error, in bytes.
	saidMost = 300
)

// instructions are those of a proxy for one event in user space, as callgrind
// counts them; the kernel's are not seen. Missing says why there are none.
type instructions struct {
	PerEvent map[string]float64 `json:"per_event"`
	// Tap is the share that reading events takes: what Lull takes more than for
	// answers that it cannot read.
	Tap     float64 `json:"of_which_the_tap"`
	Events  int     `json:"events"`
	Missing string  `json:"missing,omitempty"`
}

// errNoValgrind: the count is left out with this reason.
var errNoValgrind = errors.New("valgrind is not installed; it counts instructions where the machine's counters cannot be read")

// countInstructions runs the proxies again under callgrind. Nothing is timed, and
// a tool that is not there or breaks off costs nothing but the count.
func countInstructions(ctx context.Context, valgrind string, upstream *child) (instructions, error) {
	tool, err := exec.LookPath(valgrind)
	if err != nil {
		return instructions{Missing: errNoValgrind.Error()}, nil
	}
	r, err := countUnder(ctx, tool, upstream)
	switch {
	case ctx.Err() != nil:
		return instructions{}, ctx.Err()
	case err != nil:
		return instructions{Missing: err.Error()}, nil
	}
	return r, nil
}

func countUnder(ctx context.Context, tool string, upstream *child) (instructions, error) {
	r := instructions{PerEvent: map[string]float64{}, Events: countedRequests * (manyEvents - fewEvents)}
	for _, name := range []string{armBare, armLull, armBlind} {
		few, err := counted(ctx, tool, name, upstream, fewEvents)
		if err != nil {
			return r, err
		}
		many, err := counted(ctx, tool, name, upstream, manyEvents)
		if err != nil {
			return r, err
		}
		r.PerEvent[name] = (many - few) / float64(r.Events)
	}
	r.Tap = r.PerEvent[armLull] - r.PerEvent[armBlind]
	return r, nil
}

// counted is all that one proxy executes from its start to its end.
func counted(ctx context.Context, tool, name string, upstream *child, events int) (float64, error) {
	r := role{Name: name, Upstream: "http://" + upstream.addr}
	if name == armBlind {
		r.Name = armLull
	}
	// callgrind stops at the signals by which Go interrupts a goroutine.
	c, err := start(ctx, r, "env", "GODEBUG=asyncpreemptoff=1", tool, "--tool=callgrind", "--callgrind-out-file=/dev/null")
	if err != nil {
		return 0, err
	}
	l := load{events: events, gap: countedGap, prompt: 200}
	err = sendAll(ctx, l.target(name, c.addr))
	c.stop()
	if err != nil {
		return 0, err
	}
	return collected(c.log.String())
}

func sendAll(ctx context.Context, to target) error {
	conn, err := dial(ctx, to)
	if err != nil {
		return err
	}
	defer conn.close()
	for range countedRequests {
		if _, err := conn.call(time.Now(), nil); err != nil {
			return err
		}
	}
	return nil
}

var collectedLine = regexp.MustCompile(`(?m)^==\d+== Collected : (\d+)$`)

// collected reads callgrind's own summary.
func collected(log string) (float64, error) {
	m := collectedLine.FindStringSubmatch(log)
	if m == nil {
		said := strings.TrimSpace(log)
		return 0, fmt.Errorf("bench proxy: callgrind: got %q, want a line with what it collected", said[max(0, len(said)-saidMost):])
	}
	return strconv.ParseFloat(m[1], 64)
}

// print is the count's part of the table.
func (r instructions) print(w io.Writer) {
	if r.Missing != "" {
		fmt.Fprintf(w, "instructions: %s\n", r.Missing)
		return
	}
	fmt.Fprintf(w, "instructions for an event, user space, callgrind, %d events: bare %.0f, lull %.0f, of which the tap %.0f\n",
		r.Events, r.PerEvent[armBare], r.PerEvent[armLull], r.Tap)
}
