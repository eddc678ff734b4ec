package device

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// firstPIDSpace is the machine's own PID namespace: its inode is fixed in the
// kernel (PROC_PID_INIT_INO, 0xEFFFFFFC).
const firstPIDSpace = "pid:[4026531836]"

// pidSpace judges whether the pids that NVML lists are those of this process's PID
// namespace. NVML counts by the machine's own. In a container older drivers still
// do, so the same number may be another process here; newer ones translate, list
// only the container's, and then mostly give no bytes
// (https://github.com/NVIDIA/open-gpu-kernel-modules/pull/614).
type pidSpace struct {
	// first says that this is the machine's own.
	first bool
	// onGPU says that the process of that pid here has a GPU open.
	onGPU func(pid int) bool
}

func ownPIDSpace() pidSpace {
	link, err := os.Readlink("/proc/self/ns/pid")
	return pidSpace{first: err == nil && link == firstPIDSpace, onGPU: hasGPUOpen}
}

// foreign says why listed pids mean nothing here, "" where they do.
func (s pidSpace) foreign(listed []listing) string {
	if s.first {
		return ""
	}
	const remedy = "; share the host's PID namespace (docker --pid=host, Kubernetes hostPID)"
	if len(listed) == 0 {
		return "NVML lists no process in this PID namespace" + remedy
	}
	for _, l := range listed {
		if !s.onGPU(l.pid) {
			return fmt.Sprintf("NVML lists pid %d, which in this PID namespace has no GPU open: it counts by the host's pids%s", l.pid, remedy)
		}
	}
	return ""
}

// hasGPUOpen looks for /dev/nvidia0 and the like among a process's open files.
func hasGPUOpen(pid int) bool {
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	files, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, f := range files {
		if target, err := os.Readlink(filepath.Join(dir, f.Name())); err == nil && strings.HasPrefix(target, "/dev/nvidia") {
			return true
		}
	}
	return false
}

// isMPS says that a process is NVIDIA's Multi-Process Service: the kernel cuts
// nvidia-cuda-mps-server and nvidia-cuda-mps-control to 15 letters.
func isMPS(pid int) bool {
	comm, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return err == nil && strings.HasPrefix(string(comm), "nvidia-cuda-mps")
}
