package device

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/lull-project/lull/size"
)

// MachineMemory is the memory of this machine: MemTotal of /proc/meminfo.
func MachineMemory() (size.Bytes, error) {
	const file = "/proc/meminfo"
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("device: memory of the machine: %w", err)
	}
	return memTotal(string(text))
}

func memTotal(text string) (size.Bytes, error) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, "MemTotal:")
		if !ok {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
		if err != nil || kib <= 0 {
			return 0, fmt.Errorf("device: memory of the machine: /proc/meminfo holds %q, want MemTotal in kB", strings.TrimSpace(line))
		}
		return size.Bytes(kib) * size.KiB, nil
	}
	return 0, fmt.Errorf("device: memory of the machine: /proc/meminfo has no MemTotal")
}

// CgroupLimit is the least memory limit of pid's cgroup and of those above it,
// and the file that it was read from: memory.max (cgroup v2) or
// memory.limit_in_bytes (v1). 0 and no file where there is no limit.
func CgroupLimit(pid int) (size.Bytes, string, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return 0, "", fmt.Errorf("device: cgroup of pid %d: %w", pid, err)
	}
	least, from := leastLimit("/", cgroupLimitFiles(string(text)))
	return least, from, nil
}

// noLimit is from where on cgroup v1's figure means none: it writes the largest
// page-aligned number.
const noLimit = size.Bytes(1) << 60

// leastLimit reads the files that are there, below root.
func leastLimit(root string, files []string) (least size.Bytes, from string) {
	for _, file := range files {
		value, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			continue // no such controller, or the root cgroup, which has none
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(value)), 10, 64)
		if err != nil || size.Bytes(n) >= noLimit {
			continue // "max"
		}
		if from == "" || size.Bytes(n) < least {
			least, from = size.Bytes(n), file
		}
	}
	return least, from
}

// cgroupLimitFiles turns /proc/PID/cgroup lines into the files that may hold a
// limit, from the cgroup up to the root of its hierarchy.
func cgroupLimitFiles(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		roots, name := []string{"/sys/fs/cgroup/memory"}, "memory.limit_in_bytes"
		if parts[1] == "" {
			roots, name = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}, "memory.max"
		} else if !strings.Contains(","+parts[1]+",", ",memory,") {
			continue
		}
		for dir := path.Clean("/" + parts[2]); ; dir = path.Dir(dir) {
			for _, root := range roots {
				out = append(out, path.Join(root, dir, name))
			}
			if dir == "/" {
				break
			}
		}
	}
	return out
}
