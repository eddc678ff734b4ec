package demo

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// machine is the sentence about where figures were made.
func machine() string {
	model := "unknown CPU"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		model = cpuModel(string(text), model)
	}
	kernel := "unknown kernel"
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		kernel = "Linux " + string(bytes.TrimRight(u.Release[:], "\x00"))
	}
	memory := ""
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		memory = fmt.Sprintf(", %.1f GiB", float64(info.Totalram)*float64(info.Unit)/(1<<30))
	}
	return fmt.Sprintf("%s, %d cores%s, %s, %s", model, runtime.NumCPU(), memory, kernel, runtime.Version())
}

func cpuModel(cpuinfo, otherwise string) string {
	for line := range strings.Lines(cpuinfo) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return otherwise
}

// command is how the run was started, without the folder of the binary.
func command(args []string) string {
	if len(args) == 0 {
		return "lull demo"
	}
	return strings.Join(append([]string{args[0][strings.LastIndex(args[0], "/")+1:]}, args[1:]...), " ")
}

// busy is a sentence about other work on the machine, empty when there is
// little: load is the text of /proc/loadavg.
func busy(load string, cores int) string {
	fields := strings.Fields(load)
	if len(fields) == 0 {
		return ""
	}
	running, err := strconv.ParseFloat(fields[0], 64)
	if err != nil || running < 0.3*float64(cores) {
		return ""
	}
	return fmt.Sprintf("when the demo began, other processes kept the machine busy (load average %s on %d cores): latencies and training speed are worse and noisier than on a quiet machine", fields[0], cores)
}
