package sidecar

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// byHand is a trainer written by hand; this test's own process is behind it.
type byHand struct {
	t     *testing.T
	conn  net.Conn
	lines *bufio.Scanner
}

// hello joins with the given fields over those of an honest trainer.
func (r *rig) hello(job, place string, pid int, baseline, floor, lastEpoch uint64) *byHand {
	r.t.Helper()
	conn, err := net.Dial("unix", r.socket)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	c := &byHand{r.t, conn, bufio.NewScanner(conn)}
	c.say(`{"type":"hello","version":1,"job":%q,"rank":0,"world":1,"pid":%d,"device":%q,"baseline":%d,"floor":%d,"floor_known":true,"ceiling":0,"held":0,"last_epoch":%d,"min_budget":0,"suspended":0}`,
		job, pid, place, baseline, floor, lastEpoch)
	c.wait(`"type":"welcome"`)
	return c
}

func (c *byHand) say(format string, args ...any) {
	c.t.Helper()
	if _, err := fmt.Fprintf(c.conn, format+"\n", args...); err != nil {
		c.t.Fatal(err)
	}
}

// wait reads until a line has that in it.
func (c *byHand) wait(part string) string {
	c.t.Helper()
	for c.lines.Scan() {
		if strings.Contains(c.lines.Text(), part) {
			return c.lines.Text()
		}
	}
	c.t.Fatalf("no line with %s: %v", part, c.lines.Err())
	return ""
}

const report = `{"type":"report","bytes":{},"samples":7,"step":1,"microbatch":1,"microbatch_ms":1,"batch_ms":1}`
