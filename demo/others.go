package demo

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// othersFor is how long the demo watches what other processes use of the machine
	// before it starts its own.
	othersFor = 2 * time.Second
	// othersLeast is the share of the cores from which on that is worth a warning.
	othersLeast = 0.15
	// tick is the unit of /proc/stat.
	tick = 10 * time.Millisecond
)

// measureOthers watches the cores for othersFor and warns of other work on them;
// empty when there is little, or nobody can say.
func measureOthers(ctx context.Context, cores []int) string {
	read := func() (time.Duration, bool) {
		text, err := os.ReadFile("/proc/stat")
		if err != nil {
			return 0, false
		}
		own, err := ownCPU()
		used, ok := coresUsed(string(text), cores)
		return used - own, ok && err == nil
	}
	start := time.Now()
	before, ok1 := read()
	if !sleep(ctx, othersFor) {
		return ""
	}
	after, ok2 := read()
	if !ok1 || !ok2 {
		return ""
	}
	return busy(after-before, time.Since(start), len(cores))
}

// ownCPU is the CPU time that this process has used.
func ownCPU() (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, err
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// coresUsed is how long the cores have not been idle since the machine's start: stat
// is the text of /proc/stat. Time that a hypervisor took counts as used.
func coresUsed(stat string, cores []int) (used time.Duration, ok bool) {
	found := 0
	for line := range strings.Lines(stat) {
		fields := strings.Fields(line)
		if len(fields) < 9 || !strings.HasPrefix(fields[0], "cpu") {
			continue
		}
		core, err := strconv.Atoi(strings.TrimPrefix(fields[0], "cpu"))
		if err != nil || !slices.Contains(cores, core) { // the first line adds all up
			continue
		}
		found++
		for i, field := range fields[1:9] { // user nice system idle iowait irq softirq steal
			n, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return 0, false
			}
			if i != 3 && i != 4 {
				used += time.Duration(n) * tick
			}
		}
	}
	return used, found > 0
}

// busy is the sentence about what other processes used of the cores in a time, empty
// when that is little.
func busy(used, in time.Duration, cores int) string {
	if cores == 0 || used.Seconds() < othersLeast*in.Seconds()*float64(cores) {
		return ""
	}
	return fmt.Sprintf("in the %.0f s before the demo other processes used %.1f of its %d cores: latencies and training speed are worse and noisier than on a quiet machine",
		in.Seconds(), used.Seconds()/in.Seconds(), cores)
}
