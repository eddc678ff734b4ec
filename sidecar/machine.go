package sidecar

import (
	"errors"
	"fmt"
	"log/slog"
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

// ErrTooLarge is wrapped by FitsMachine's error about capacities.
var ErrTooLarge = errors.New("lull serve relays with this and lends nothing")

// FitsMachine refuses an engine's pid that Lull itself descends from (1 on most
// machines: all their memory would count as the server's), and, as ErrTooLarge,
// host devices that together have more than a tenth above this machine's memory:
// what is lent of the rest is swapped or ends in the kernel's out-of-memory killer.
// Warnings say what may be right: a capacity that was rounded up (the kernel keeps
// a part of what was bought), more than the limit of our own cgroup, where servers
// and trainers run in others, and memory that cannot be read.
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
		if d.Kind == config.KindNVIDIA {
			continue
		}
		beside := ""
		if sum > 0 {
			beside = fmt.Sprintf(" beside %v of the devices before it", sum)
		}
		sum += d.Capacity
		if sum >= d.Capacity && sum <= total {
			continue
		}
		text := fmt.Sprintf("devices[%d].capacity: got %v%s, want at most this machine's memory in all, %v (MemTotal)", i, d.Capacity, beside, total)
		if sum < d.Capacity || sum > total+total/10 {
			return warnings, fmt.Errorf("%s: %w", text, ErrTooLarge)
		}
		warnings = append(warnings, text+": Lull lends it all the same, also what is not there")
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

// fitted is f as it can be served here, and what of it cannot: wrong devices are no
// reason to serve nobody.
func fitted(f config.File, log *slog.Logger) (fits config.File, tooLarge, err error) {
	warnings, err := FitsMachine(f)
	for _, w := range slices.Concat(f.Warnings(), warnings) {
		log.Warn(w)
	}
	if !errors.Is(err, ErrTooLarge) {
		return f, nil, err
	}
	log.Error("devices are too large for this machine; requests are relayed and nothing is lent until a restart with smaller ones", "err", err)
	return onlyRelaying(f), err, nil
}

// onlyRelaying is f with no engine on a device.
func onlyRelaying(f config.File) config.File {
	f.Devices, f.Engines = nil, slices.Clone(f.Engines)
	for i := range f.Engines {
		f.Engines[i].Devices = nil
	}
	return f
}
