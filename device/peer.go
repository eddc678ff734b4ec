package device

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// PIDBySocket finds the process that listens on a unix socket: it asks the kernel
// who called listen there (SO_PEERCRED, unix(7)), over a connection that says
// nothing. The error says that nobody listens, that the process is in another PID
// namespace and cannot be seen, or that process 1 listens for whom it starts.
func PIDBySocket(path string) (int, error) {
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT):
		return 0, fmt.Errorf("device: pid by socket %s: nobody listens there", path)
	case err != nil:
		return 0, fmt.Errorf("device: pid by socket %s: %w", path, err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("device: pid by socket %s: %w", path, err)
	}
	var cred *unix.Ucred
	var asked error
	err = raw.Control(func(fd uintptr) { cred, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	switch {
	case err != nil:
		return 0, fmt.Errorf("device: pid by socket %s: %w", path, err)
	case asked != nil:
		return 0, fmt.Errorf("device: pid by socket %s: %w", path, asked)
	case cred.Pid == 0:
		return 0, fmt.Errorf("device: pid by socket %s: its listener is not visible from here (another PID namespace)", path)
	case cred.Pid == 1:
		return 0, fmt.Errorf("device: pid by socket %s: process 1 listens there for another (socket activation), want the server's own pid in the config", path)
	}
	return int(cred.Pid), nil
}
