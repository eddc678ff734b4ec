// Package device tells the truth about bytes: how much memory a process holds
// on a device, by the device's own books.
//
// Host memory is the only device kind so far: a process's bytes are its RssAnon
// plus RssShmem in /proc/PID/status (proc_pid_status(5)), file-backed pages left
// out. RSS is not always physical (huge pages punched in part, shared maps), so
// Cgroup gives the cgroup's memory as a cross-check. The package also holds a
// device's lock file, which makes one sidecar the only writer of a device and
// counts its starts.
//
// It never decides anything and knows nothing of engines, trainers or budgets.
// A Process may be read by one goroutine at a time; the functions are safe for
// concurrent use.
//
//	p, err := device.Open(pid)
//	b, err := p.Read() // size.Bytes; device.ErrGone once the process has ended
package device
