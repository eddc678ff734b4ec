package demo

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Placement says which cores the training job, the server and everything else
// run on. The study of memory measures memory, so the job must not steal the
// server's time: it gets one core for itself and a lower priority. The study of
// isolation measures just that: server and job share a core, as two processes
// share a GPU. The report says which.
type Placement struct {
	Trainer, Server, Rest []int // cores; empty leaves a process where it is
	TrainerNice           int   // the demo's own nice value where the caller asked for none
}

// placement gives the trainer the last of the allowed cores, and what remains to
// the rest; with one core nobody is pinned.
func placement(study string, allowed []int, nice int) Placement {
	p := Placement{TrainerNice: nice}
	n := len(allowed)
	if n < 2 {
		return p
	}
	p.Trainer, p.Server, p.Rest = allowed[n-1:], allowed[:n-1], allowed[:n-1]
	if study == StudyIsolation {
		p.Server = p.Trainer
	}
	return p
}

// allowedCores are the cores that this process may run on.
func allowedCores() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("read cpu affinity: %w", err)
	}
	var cores []int
	for c := 0; len(cores) < set.Count(); c++ {
		if set.IsSet(c) {
			cores = append(cores, c)
		}
	}
	return cores, nil
}

// ownNice is the nice value of this process, which its children inherit.
func ownNice() int {
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return 0 // cannot be: it is our own
	}
	return 20 - raw // the system call counts from 40 down
}

// pinThread puts the calling thread on cores and gives it a nice value; a new
// child process inherits both. The caller must have locked its thread.
func pinThread(cores []int, nice int) error {
	if len(cores) > 0 {
		var set unix.CPUSet
		for _, c := range cores {
			set.Set(c)
		}
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("pin to cores %v: %w", cores, err)
		}
	}
	if nice != 0 {
		if err := unix.Setpriority(unix.PRIO_PROCESS, 0, nice); err != nil {
			return fmt.Errorf("nice %d: %w", nice, err)
		}
	}
	return nil
}

// String is the sentence that the report prints.
func (p Placement) String() string {
	if len(p.Trainer) == 0 {
		return fmt.Sprintf("one core: nothing is pinned; the trainer runs at nice %d", p.TrainerNice)
	}
	if slices.Equal(p.Server, p.Trainer) {
		return fmt.Sprintf("the server and the trainer (nice %d, one thread) share core %s, everything else on core %s", p.TrainerNice, coreList(p.Trainer), coreList(p.Rest))
	}
	return fmt.Sprintf("trainer on core %s at nice %d with one thread, everything else on core %s", coreList(p.Trainer), p.TrainerNice, coreList(p.Rest))
}

func coreList(cores []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(cores), " ", ","), "[]")
}

// pinProcess puts every thread of this process on cores; new threads inherit
// it. restore puts them back where they may have been before.
func pinProcess(cores []int) (restore func(), err error) {
	old, err := allowedCores()
	if err != nil {
		return nil, err
	}
	if len(cores) == 0 {
		return func() {}, nil
	}
	if err := pinThreads(cores); err != nil {
		return nil, err
	}
	return func() { _ = pinThreads(old) }, nil // the process is about to end or to test
}

func pinThreads(cores []int) error {
	var set unix.CPUSet
	for _, c := range cores {
		set.Set(c)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("pin to cores %v: %w", cores, err)
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		if err := unix.SchedSetaffinity(tid, &set); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("pin to cores %v: %w", cores, err)
		}
	}
	return nil
}
