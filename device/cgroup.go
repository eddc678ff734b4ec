package device

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/lull-project/lull/size"
)

// Cgroup returns the memory charged to pid's cgroup, and the file it was read
// from: memory.current (cgroup v2) or memory.usage_in_bytes (v1). It counts
// every process of the cgroup and its page cache, so differences tell more than
// the value. The error says that no such file can be read here.
func Cgroup(pid int) (size.Bytes, string, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return 0, "", fmt.Errorf("device: cgroup of pid %d: %w", pid, err)
	}
	for _, file := range cgroupFiles(string(text)) {
		value, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(value)), 10, 64)
		if err != nil {
			return 0, file, fmt.Errorf("device: cgroup of pid %d: %s holds %q, want a number", pid, file, value)
		}
		return size.Bytes(n), file, nil
	}
	return 0, "", fmt.Errorf("device: cgroup of pid %d: no memory file can be read under /sys/fs/cgroup", pid)
}

// cgroupFiles turns /proc/PID/cgroup lines (hierarchy:controllers:path) into
// the files to try, most exact first.
func cgroupFiles(text string) []string {
	var v1, v2 []string
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		parts := strings.SplitN(line, ":", 3)
		if len(parts) != 3 {
			continue
		}
		switch {
		case parts[1] == "":
			for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
				v2 = append(v2, filepath.Join(root, parts[2], "memory.current"))
			}
		case strings.Contains(","+parts[1]+",", ",memory,"):
			v1 = append(v1,
				filepath.Join("/sys/fs/cgroup/memory", parts[2], "memory.usage_in_bytes"),
				"/sys/fs/cgroup/memory/memory.usage_in_bytes")
		}
	}
	return append(v1, v2...)
}
