// Package device tells the truth about bytes: how much memory a process holds
// on a device, by the device's own books.
//
// On host memory a process's bytes are its RssAnon plus RssShmem in
// /proc/PID/status (proc_pid_status(5)), file-backed pages left out. RSS is not
// always physical (huge pages punched in part, shared maps), so Cgroup gives the
// cgroup's memory as a cross-check. The package also holds a device's lock file,
// which makes one sidecar the only writer of a device and counts its starts.
//
// A GPU, or a MIG instance, keeps its own books through NVML: memory, the bytes of
// each process where the driver gives them, faults (XID, ECC). A Reading says which
// truth there is: in a container the driver's pids may be another namespace's. A
// driver may hang, so Read and Watch return when their context ends, whatever it does.
//
// It never decides anything and knows nothing of engines, trainers or budgets.
// A Process may be read by one goroutine at a time; a GPU and the functions are safe
// for concurrent use.
//
//	p, err := device.Open(pid)
//	b, err := p.Read() // size.Bytes; device.ErrGone once the process has ended
//	g, err := device.OpenGPU("0") // or a UUID; the error says what is missing
//	r, err := g.Read(ctx)         // r.Process(pid)
package device
