package sidecar

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/size"
)

func TestCapacityAboveTheMachinesMemoryIsFound(t *testing.T) {
	has := func(total, limit size.Bytes) machine {
		return machine{
			total: func() (size.Bytes, error) { return total, nil },
			limit: func() (size.Bytes, string, error) {
				if limit == 0 {
					return 0, "", nil
				}
				return limit, "/sys/fs/cgroup/memory.max", nil
			},
		}
	}
	descends := has(8*size.GiB, 0)
	descends.ancestors = func() []int { return []int{70, 30, 1} }
	blind := has(8*size.GiB, 0)
	blind.limit = func() (size.Bytes, string, error) { return 0, "", errors.New("device: cgroup of pid 7: gone") }
	blinder := machine{total: func() (size.Bytes, error) { return 0, errors.New("device: memory of the machine: gone") }}
	for name, c := range map[string]struct {
		on       machine
		capacity []size.Bytes
		pid      int
		err      string
		warnings []string
	}{
		"fits":      {on: has(8*size.GiB, 0), capacity: []size.Bytes{8 * size.GiB}},
		"no device": {on: blinder},
		"too large": {on: has(8*size.GiB, 0), capacity: []size.Bytes{900 * size.GiB},
			err: "devices[0].capacity: got 900.0GiB, want at most this machine's memory in all, 8.0GiB (MemTotal): lull serve relays with this and lends nothing"},
		"together": {on: has(8*size.GiB, 0), capacity: []size.Bytes{5 * size.GiB, 4 * size.GiB},
			err: "devices[1].capacity: got 4.0GiB beside 5.0GiB of the devices before it, want at most this machine's memory in all, 8.0GiB (MemTotal): lull serve relays with this and lends nothing"},
		"overflow": {on: has(8*size.GiB, 0), capacity: []size.Bytes{size.GiB, 1<<63 - 1},
			err: "devices[1].capacity: got 8589934592.0GiB beside 1.0GiB of the devices before it, want at most this machine's memory in all, 8.0GiB (MemTotal): lull serve relays with this and lends nothing"},
		"rounded up": {on: has(7900*size.MiB, 0), capacity: []size.Bytes{8 * size.GiB},
			warnings: []string{"devices[0].capacity: got 8.0GiB, want at most this machine's memory in all, 7.7GiB (MemTotal): Lull lends it all the same, also what is not there"}},
		"a little more": {on: has(8*size.GiB, 0), capacity: []size.Bytes{8 * size.GiB, size.GiB},
			err: "devices[1].capacity: got 1.0GiB beside 8.0GiB of the devices before it, want at most this machine's memory in all, 8.0GiB (MemTotal): lull serve relays with this and lends nothing"},
		"cgroup": {on: has(8*size.GiB, 2*size.GiB), capacity: []size.Bytes{4 * size.GiB},
			warnings: []string{"devices: capacities of 4.0GiB are above this cgroup's memory limit of 2.0GiB (/sys/fs/cgroup/memory.max): right only where the LLM server and the trainers run in other cgroups"}},
		"init": {on: descends, pid: 1,
			err: "engines[1].pid: got 1, from which Lull itself descends, want the LLM server's own process, or 0 to find it by the port of url"},
		"another's": {on: descends, pid: 7},
		"no cgroup": {on: blind, capacity: []size.Bytes{size.GiB},
			warnings: []string{"devices: capacities are not checked against the cgroup's memory limit: device: cgroup of pid 7: gone"}},
		"no meminfo": {on: blinder, capacity: []size.Bytes{size.GiB},
			warnings: []string{"devices: capacities are not checked against this machine's memory: device: memory of the machine: gone"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := config.File{Engines: []config.Engine{{}, {PID: c.pid}}}
			for _, b := range c.capacity {
				f.Devices = append(f.Devices, config.Device{Capacity: b})
			}
			warnings, err := c.on.fits(f)
			if (err == nil) != (c.err == "") || err != nil && err.Error() != c.err || !slices.Equal(warnings, c.warnings) {
				t.Errorf("got  %q, %v\nwant %q, %s", warnings, err, c.warnings, c.err)
			}
		})
	}
}

func TestSidecarRelaysAndLendsNothingWhereDevicesAreTooLarge(t *testing.T) {
	l := newLone(t, whole("relayed"), func(f *config.File) {
		f.StateDir = t.TempDir()
		f.Trainers.Socket = filepath.Join(t.TempDir(), "lull.sock")
		f.Devices = []config.Device{{ID: "host0", Kind: "host", Capacity: 1 << 60}}
		f.Engines[0].Devices = []string{"host0"}
	}, nil)
	l.logged(`level=ERROR msg="devices are too large for this machine; requests are relayed and nothing is lent until a restart with smaller ones" err="devices[0].capacity: got 1073741824.0GiB, want at most this machine's memory in all, `)
	l.logged("Lull only relays and measures: no engine is on a device")
	l.chat("relayed")
	if changed, restart, err := l.sidecar.Reload(l.file); len(changed)+len(restart) != 0 || err != nil {
		t.Errorf("the same file again: changed %v, restart %v, %v; want nothing", changed, restart, err)
	}
	if ready, body := l.readyz(); !ready || !strings.Contains(body, `"lull.yaml: devices[0].capacity: got `) {
		t.Errorf("ready %v: %s; want ready, and the problem named", ready, body)
	}
}
