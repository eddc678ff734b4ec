package demo

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
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
