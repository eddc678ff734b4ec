package evidence

import (
	"os"
	"runtime"
	"strings"
)

// Machine says where a figure comes from. GOMAXPROCS is that of every process
// of the run.
type Machine struct {
	CPU        string `json:"cpu"`
	Cores      int    `json:"cores"`
	GOMAXPROCS int    `json:"gomaxprocs"`
	Go         string `json:"go"`
	OS         string `json:"os"`
	// Load is the load average at the end, or "unknown".
	Load string `json:"load_average"`
}

// ThisMachine reads it; what cannot be read is "unknown".
func ThisMachine() Machine {
	return Machine{
		CPU: cpuModel("/proc/cpuinfo"), Cores: runtime.NumCPU(), GOMAXPROCS: runtime.GOMAXPROCS(0),
		Go: runtime.Version(), OS: runtime.GOOS + "/" + runtime.GOARCH, Load: loadAverage("/proc/loadavg"),
	}
}

func cpuModel(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func loadAverage(file string) string {
	b, err := os.ReadFile(file)
	if f := strings.Fields(string(b)); err == nil && len(f) >= 3 {
		return strings.Join(f[:3], " ")
	}
	return "unknown"
}
