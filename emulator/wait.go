package emulator

import (
	"time"

	"golang.org/x/sys/unix"
)

// fine is how long before its time the engine leaves the runtime's timers, which
// wake up to 1.1 ms late on Linux (epoll counts in milliseconds), for a sleep in
// the kernel, which is good to about 0.1 ms and does not spin. Commands wait that
// long at most.
const fine = 1200 * time.Microsecond

// sleepFine sleeps d in the kernel; a signal may end it early.
func sleepFine(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	// EINTR is the only error of a valid time; the caller looks at the clock again.
	_ = unix.Nanosleep(&ts, nil)
}
