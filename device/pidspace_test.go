package device

import (
	"os"
	"strings"
	"testing"

	"github.com/lull-project/lull/size"
)

func TestPIDsAreBelievedOnlyWhereTheyAreOurs(t *testing.T) {
	const remedy = "; share the host's PID namespace (docker --pid=host, Kubernetes hostPID)"
	inside := pidSpace{onGPU: func(pid int) bool { return pid < 100 }}
	for name, c := range map[string]struct {
		here   pidSpace
		listed []listing
		want   string
	}{
		"the machine's own":  {pidSpace{first: true}, []listing{{9999, size.GiB}}, ""},
		"nobody there":       {pidSpace{first: true}, nil, ""},
		"a container's":      {inside, []listing{{70, size.GiB}, {71, -1}}, ""},
		"hidden":             {inside, nil, "NVML lists no process in this PID namespace" + remedy},
		"the host's numbers": {inside, []listing{{70, size.GiB}, {4711, size.GiB}}, "NVML lists pid 4711, which in this PID namespace has no GPU open: it counts by the host's pids" + remedy},
	} {
		var r Reading
		r.attribute(c.listed, c.here)
		if r.Why != c.want {
			t.Errorf("%s: got %q, want %q", name, r.Why, c.want)
		}
		if c.want != "" && len(r.Processes) > 0 {
			t.Errorf("%s: processes %v are believed", name, r.Processes)
		}
	}
}

func TestThisProcessHasNoGPUOpen(t *testing.T) {
	if hasGPUOpen(os.Getpid()) || hasGPUOpen(-1) || isMPS(os.Getpid()) || isMPS(-1) {
		t.Error("a process without a GPU has one, or is MPS")
	}
	if link, err := os.Readlink("/proc/self/ns/pid"); err != nil || !strings.HasPrefix(link, "pid:[") || ownPIDSpace().first != (link == firstPIDSpace) {
		t.Errorf("own PID namespace: %q, %v", link, err)
	}
}

func TestReadingSaysWhichTruthThereIs(t *testing.T) {
	for want, r := range map[string]Reading{
		"3.0GiB in use, the bytes of 1 processes read, 2 more listed without theirs, shared through MPS": {Used: 3 * size.GiB, Processes: map[int]size.Bytes{1: 2}, Unread: []int{3, 4}, MPS: true},
		"0B in use, the bytes of 0 processes read":                                                       {},
		"1.0GiB in use, processes cannot be told apart: so":                                              {Used: size.GiB, Why: "so"},
	} {
		if got := r.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestFactsAreOneLine(t *testing.T) {
	f := Facts{Name: "NVIDIA L4", UUID: "GPU-1", Driver: "550.1", Total: 22 * size.GiB, Notes: []string{"a", "b"}}
	if got := f.String(); got != "NVIDIA L4, 22.0GiB, GPU-1, driver 550.1; a; b" {
		t.Errorf("got %q", got)
	}
}
