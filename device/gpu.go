package device

import (
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/lull-project/lull/size"
)

// ErrUnreadable is wrapped by Reading.Process where the driver does not say what
// that process holds.
var ErrUnreadable = errors.New("the driver does not say what this process holds")

// Facts are what a GPU, or an instance of one (MIG), is. They do not change while
// it is open.
type Facts struct {
	// Name is the driver's, such as NVIDIA H100 80GB HBM3; UUID is GPU-... or MIG-....
	Name, UUID string
	// Driver is the version of the kernel driver.
	Driver string
	// Total is all of its memory, the driver's own share included.
	Total size.Bytes
	// Instance says that it is a part of a GPU (MIG).
	Instance bool
	// Alone says that NVML shows this one whole GPU here and no other: what a
	// process calls cuda:0 can be nothing else.
	Alone bool
	// Notes are what may stand in the way, in sentences: a compute mode that admits
	// one process, rows that wait for a reset.
	Notes []string
}

// String is one line for people.
func (f Facts) String() string {
	text := fmt.Sprintf("%s, %v, %s, driver %s", f.Name, f.Total, f.UUID, f.Driver)
	if len(f.Notes) > 0 {
		text += "; " + strings.Join(f.Notes, "; ")
	}
	return text
}

// Reading is a GPU's memory at one time.
type Reading struct {
	// Total is all of it, Used what is not free: the processes' and the driver's own.
	Total, Used size.Bytes
	// Processes are the bytes of each process that could be told, by its pid here.
	Processes map[int]size.Bytes
	// Unread are the pids that NVML lists without their bytes.
	Unread []int
	// Why is empty where pids mean what they mean here, else it says why no process
	// of the list can be told from another. Processes is empty then.
	Why string
	// MPS says that processes share the GPU through NVIDIA's Multi-Process Service.
	MPS bool
}

// String is what is in use and which truth there is about processes.
func (r Reading) String() string {
	text := fmt.Sprintf("%v in use, the bytes of %d processes read", r.Used, len(r.Processes))
	switch {
	case r.Why != "":
		text = fmt.Sprintf("%v in use, processes cannot be told apart: %s", r.Used, r.Why)
	case len(r.Unread) > 0:
		text += fmt.Sprintf(", %d more listed without theirs", len(r.Unread))
	}
	if r.MPS {
		text += ", shared through MPS"
	}
	return text
}

// Process is what a process holds, 0 where the driver lists every process and not
// this one. The error wraps ErrUnreadable.
func (r Reading) Process(pid int) (size.Bytes, error) {
	if b, ok := r.Processes[pid]; ok {
		return b, nil
	}
	if r.Why != "" {
		return 0, fmt.Errorf("device: bytes of pid %d: %w: %s", pid, ErrUnreadable, r.Why)
	}
	for _, p := range r.Unread {
		if p == pid {
			return 0, fmt.Errorf("device: bytes of pid %d: %w: NVML lists it without a figure (a container's PID namespace, or a driver that does not count)", pid, ErrUnreadable)
		}
	}
	return 0, nil
}

// Fault is an error that the driver reported.
type Fault struct {
	// Kind is xid, ecc_corrected, ecc_uncorrected, retired or lost.
	Kind string
	// Code is the XID's number, 0 for other kinds.
	Code uint64
	// Text says what it is.
	Text string
	// Job says that a process on the GPU caused it, not the hardware.
	Job bool
}

// The kinds of faults.
const (
	FaultXID         = "xid"
	FaultCorrected   = "ecc_corrected"
	FaultUncorrected = "ecc_uncorrected"
	FaultRetired     = "retired"
	FaultLost        = "lost"
)

// xids are the codes that an operator meets (NVIDIA's XID catalog); job marks those
// that a process causes by itself, which NVIDIA's own Kubernetes plugin passes over.
var xids = map[uint64]struct {
	text string
	job  bool
}{
	13: {"graphics engine exception", true}, 31: {"memory page fault", true}, 43: {"the GPU stopped processing", true},
	45: {"preemptive cleanup after an earlier error", true}, 68: {"video processor exception", true}, 109: {"context switch timeout", true},
	48: {"uncorrectable ECC error", false}, 63: {"a memory row was remapped or a page retired", false}, 64: {"a memory row could not be remapped", false},
	74: {"NVLink error", false}, 79: {"the GPU has fallen off the bus", false}, 92: {"high rate of single-bit ECC errors", false},
	94: {"contained memory error", false}, 95: {"uncontained memory error", false}, 119: {"the GPU's system processor does not answer", false},
	120: {"error of the GPU's system processor", false}, 140: {"unrecovered ECC error", false},
}

func xidFault(code uint64) Fault {
	known, ok := xids[code]
	if !ok {
		known.text = "see NVIDIA's XID catalog"
	}
	return Fault{Kind: FaultXID, Code: code, Text: fmt.Sprintf("XID %d (%s)", code, known.text), Job: known.job}
}

// listing is one line of NVML's list of processes; bytes are -1 where it gives none.
type listing struct {
	pid   int
	bytes size.Bytes
}

// attribute fills the reading's processes from NVML's lists. The same process may
// stand in two of them (compute, and as a client of MPS): the larger figure counts.
func (r *Reading) attribute(listed []listing, here pidSpace) {
	r.Processes = map[int]size.Bytes{}
	if r.Why = here.foreign(listed); r.Why != "" {
		return
	}
	unread := map[int]bool{}
	for _, l := range listed {
		switch {
		case l.bytes > 0:
			r.Processes[l.pid] = max(r.Processes[l.pid], l.bytes)
		default: // none, or 0: a process with a context holds more than that
			unread[l.pid] = true
		}
	}
	for pid := range unread {
		if _, ok := r.Processes[pid]; !ok {
			r.Unread = append(r.Unread, pid)
		}
	}
	sort.Ints(r.Unread)
}

// Listed is one GPU or MIG instance that NVML shows here. Index counts whole GPUs as
// nvidia-smi does.
type Listed struct {
	Index int
	Facts
}

// gpuError names the GPU.
func gpuError(which string, err error) error {
	if which == "" {
		return fmt.Errorf("device: gpus: %w", err)
	}
	return fmt.Errorf("device: gpu %s: %w", which, err)
}
