package demo

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cpuTime is what the kernel's scheduler says of a process since its start, over
// all its threads: how long it ran, and how long it could have run and waited for
// a core.
type cpuTime struct{ ran, waited time.Duration }

// readCPUTime reads /proc/PID/task/*/schedstat; ok is false where the kernel does
// not keep it or the process has ended.
func readCPUTime(pid int) (c cpuTime, ok bool) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return c, false
	}
	for _, t := range threads {
		text, err := os.ReadFile(t)
		if err != nil {
			continue // a thread that has just ended
		}
		if one, good := parseSchedstat(string(text)); good {
			c.ran, c.waited, ok = c.ran+one.ran, c.waited+one.waited, true
		}
	}
	return c, ok
}

// parseSchedstat reads the first two of its numbers: nanoseconds run, nanoseconds
// waited.
func parseSchedstat(text string) (c cpuTime, ok bool) {
	fields := strings.Fields(text)
	if len(fields) < 2 {
		return c, false
	}
	ran, err1 := strconv.ParseInt(fields[0], 10, 64)
	waited, err2 := strconv.ParseInt(fields[1], 10, 64)
	return cpuTime{time.Duration(ran), time.Duration(waited)}, err1 == nil && err2 == nil
}

// late is the error that something did not come from the child within a limit, of
// which its CPU time was from and to: it is starved, or its log may say why.
func (p *proc) late(missing string, limit time.Duration, from, to cpuTime) error {
	if why := starved(p.name, from, to, limit, p.cores); why != "" {
		return fmt.Errorf("%s. Log: %s", why, p.log)
	}
	return fmt.Errorf("%s: %s in %v; %s", p.name, missing, limit, p.logTail())
}

// starved is the sentence about a process that wanted to run for most of a time and
// was not let; empty where it was.
func starved(name string, before, after cpuTime, in time.Duration, cores []int) string {
	ran, waited := after.ran-before.ran, after.waited-before.waited
	if waited < in/2 {
		return ""
	}
	where := "a core"
	if len(cores) > 0 {
		where = "core " + coreList(cores)
	}
	return fmt.Sprintf("the %s got %.1f s of CPU in %.0f s and waited %.1f s for %s, which other processes held; free the machine and run again",
		name, ran.Seconds(), in.Seconds(), waited.Seconds(), where)
}
