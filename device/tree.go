package device

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/lull-project/lull/size"
)

// Descendants lists pid and every process below it, parents before children.
// The error wraps ErrGone when pid itself has ended.
func Descendants(pid int) ([]int, error) {
	if _, err := os.Stat(statusPath(pid)); err != nil {
		return nil, fmt.Errorf("device: descendants of pid %d: %w", pid, ErrGone)
	}
	pids := []int{pid}
	for i := 0; i < len(pids); i++ {
		pids = append(pids, children(pids[i])...)
	}
	return pids, nil
}

// Ancestors lists pid and the processes that it descends from, as far as they can
// be seen: up to 1, or to the one whose parent is in another PID namespace.
func Ancestors(pid int) []int {
	var out []int
	for pid > 0 && !slices.Contains(out, pid) {
		out = append(out, pid)
		text, err := os.ReadFile(statusPath(pid))
		if err != nil {
			break
		}
		pid = 0
		for line := range strings.Lines(string(text)) {
			if word, ok := strings.CutPrefix(line, "PPid:"); ok {
				pid, _ = strconv.Atoi(strings.TrimSpace(word))
			}
		}
	}
	return out
}

// children reads the kernel's list of every thread's children; a process that
// ends meanwhile has none.
func children(pid int) []int {
	files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	var out []int
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for _, word := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(word); err == nil {
				out = append(out, child)
			}
		}
	}
	return out
}

// ReadTree adds the bytes of pid and all processes below it. A process that
// ended while it was read adds nothing; the error wraps ErrGone when pid itself
// has ended. Shared memory that several of them map counts once for each.
func ReadTree(pid int) (size.Bytes, error) {
	pids, err := Descendants(pid)
	if err != nil {
		return 0, err
	}
	var sum size.Bytes
	for _, id := range pids {
		b, err := readOnce(id)
		switch {
		case errors.Is(err, ErrGone) && id == pid:
			return 0, err
		case errors.Is(err, ErrGone):
			continue
		case err != nil:
			return 0, err
		}
		sum += b
	}
	return sum, nil
}

func readOnce(pid int) (size.Bytes, error) {
	p, err := Open(pid)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	return p.Read()
}
