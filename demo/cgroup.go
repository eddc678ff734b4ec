package demo

import (
	"fmt"
	"time"

	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/size"
)

// cgroupCheck compares the auditor's sums with the memory that the kernel
// charges to the engine's cgroup. The cgroup counts every process in it and its
// page cache, so only differences are compared, and the report says how far
// they part.
type cgroupCheck struct {
	pid int
	// File is what was read; Err is why nothing could be.
	File string
	Err  error
	at   []time.Time
	used []size.Bytes
}

func newCgroupCheck(pid int) cgroupCheck { return cgroupCheck{pid: pid} }

// sample reads the cgroup once.
func (c *cgroupCheck) sample() {
	used, file, err := device.Cgroup(c.pid)
	if err != nil {
		c.Err = err
		return
	}
	c.File = file
	c.at = append(c.at, time.Now())
	c.used = append(c.used, used)
}

// compare pairs every cgroup reading with the auditor's newest sample at its
// time and returns the largest rise of either since the first pair.
func (c cgroupCheck) compare(samples []auditSample) (cgroup, audited size.Bytes, n int) {
	var used0, total0 size.Bytes
	i := 0
	for k, at := range c.at {
		for i+1 < len(samples) && !samples[i+1].At.After(at) {
			i++
		}
		if i >= len(samples) || samples[i].At.After(at) {
			continue
		}
		if n == 0 {
			used0, total0 = c.used[k], samples[i].total()
		}
		cgroup, audited = max(cgroup, c.used[k]-used0), max(audited, samples[i].total()-total0)
		n++
	}
	return cgroup, audited, n
}

// note is the sentence that the report prints.
func (c cgroupCheck) note(samples []auditSample) string {
	if c.File == "" {
		return fmt.Sprintf("The cgroup's memory could not be read (%v), so the audit has no second witness here.", c.Err)
	}
	cgroup, audited, n := c.compare(samples)
	return fmt.Sprintf("Cross-check: over %d readings the memory of the cgroup (%s) rose by up to %v, the audited bytes by up to %v. The cgroup also counts page cache and every other process in it.", n, c.File, cgroup, audited)
}
