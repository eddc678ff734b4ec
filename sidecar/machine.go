package sidecar

import (
	"fmt"
	"os"
	"slices"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/size"
)

// machine says what memory there is here.
type machine struct {
	total func() (size.Bytes, error)
	// limit is the least of this process's cgroup and those above it, 0 for none, and
	// the file that says it.
	limit func() (size.Bytes, string, error)
	// ancestors are this process and those that it descends from.
	ancestors func() []int
}

func thisMachine() machine {
	return machine{
		total: device.MachineMemory, ancestors: func() []int { return device.Ancestors(os.Getpid()) },
		limit: func() (size.Bytes, string, error) { return device.CgroupLimit(os.Getpid()) },
	}
}

// FitsMachine refuses an engine's pid that Lull itself descends from (1 on most
// machines: all their memory would count as the server's), and host devices that
// together have more than this machine's memory: what is lent of the rest is
// swapped or ends in the kernel's out-of-memory killer. Warnings say what may be right: more than the limit of our own cgroup,
// where servers and trainers run in others, and memory that cannot be read.
func FitsMachine(f config.File) (warnings []string, err error) { return thisMachine().fits(f) }

func (m machine) fits(f config.File) (warnings []string, err error) {
	if err := m.fitsPIDs(f.Engines); err != nil {
		return nil, err
	}
	if len(f.Devices) == 0 {
		return nil, nil
	}
	total, err := m.total()
	if err != nil {
		return []string{fmt.Sprintf("devices: capacities are not checked against this machine's memory: %v", err)}, nil
	}
	var sum size.Bytes
	for i, d := range f.Devices {
		beside := ""
		if sum > 0 {
			beside = fmt.Sprintf(" beside %v of the devices before it", sum)
		}
		if sum += d.Capacity; sum < d.Capacity || sum > total {
			return nil, fmt.Errorf("devices[%d].capacity: got %v%s, want at most this machine's memory in all, %v (MemTotal)", i, d.Capacity, beside, total)
		}
	}
	limit, from, err := m.limit()
	switch {
	case err != nil:
		warnings = append(warnings, fmt.Sprintf("devices: capacities are not checked against the cgroup's memory limit: %v", err))
	case from != "" && sum > limit:
		warnings = append(warnings, fmt.Sprintf("devices: capacities of %v are above this cgroup's memory limit of %v (%s): right only where the LLM server and the trainers run in other cgroups", sum, limit, from))
	}
	return warnings, nil
}

func (m machine) fitsPIDs(engines []config.Engine) error {
	var own []int
	for i, e := range engines {
		if e.PID == 0 {
			continue
		}
		if own == nil {
			own = m.ancestors()
		}
		if slices.Contains(own, e.PID) {
			return fmt.Errorf("engines[%d].pid: got %d, from which Lull itself descends, want the LLM server's own process, or 0 to find it by the port of url", i, e.PID)
		}
	}
	return nil
}
