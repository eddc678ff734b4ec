package device

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// listenState is TCP_LISTEN in /proc/net/tcp (proc_net(5)).
const listenState = "0A"

// PIDByPort finds the process of this network namespace that listens on a TCP
// port. The error says that nobody listens, or that the listener belongs to
// another user or PID namespace and cannot be seen.
func PIDByPort(port int) (int, error) {
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		collectListeners(table, port, inodes)
	}
	if len(inodes) == 0 {
		return 0, fmt.Errorf("device: pid by port %d: nobody listens there", port)
	}
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(target, "socket:[") {
			continue
		}
		if inodes[strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")] {
			return strconv.Atoi(strings.Split(link, "/")[2])
		}
	}
	return 0, fmt.Errorf("device: pid by port %d: its listener is not visible from here (another user or PID namespace)", port)
}

// collectListeners adds the socket inodes that listen on port. A missing table
// (no IPv6) adds nothing.
func collectListeners(table string, port int, inodes map[string]bool) {
	f, err := os.Open(table)
	if err != nil {
		return
	}
	defer f.Close()
	suffix := fmt.Sprintf(":%04X", port)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 9 && fields[3] == listenState && strings.HasSuffix(fields[1], suffix) {
			inodes[fields[9]] = true
		}
	}
}
