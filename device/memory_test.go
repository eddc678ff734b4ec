package device

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/lull-project/lull/size"
)

func TestMachineMemoryIsMemTotal(t *testing.T) {
	if b, err := MachineMemory(); err != nil || b < 64*size.MiB {
		t.Errorf("got %v, %v", b, err)
	}
	if b, err := memTotal("MemFree: 1 kB\nMemTotal:       2048 kB\n"); err != nil || b != 2*size.MiB {
		t.Errorf("got %v, %v, want 2 MiB", b, err)
	}
	for text, want := range map[string]string{
		"MemFree: 1 kB\n":     "device: memory of the machine: /proc/meminfo has no MemTotal",
		"MemTotal: many kB\n": `device: memory of the machine: /proc/meminfo holds "MemTotal: many kB", want MemTotal in kB`,
	} {
		if _, err := memTotal(text); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestLimitIsTheLeastOfTheCgroupAndThoseAboveIt(t *testing.T) {
	root := t.TempDir()
	write := func(file, text string) {
		t.Helper()
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files := cgroupLimitFiles("4:memory:/a\n1:cpu:/x\n0::/s/c\nnonsense\n")
	want := []string{
		"/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes",
		"/sys/fs/cgroup/s/c/memory.max", "/sys/fs/cgroup/unified/s/c/memory.max",
		"/sys/fs/cgroup/s/memory.max", "/sys/fs/cgroup/unified/s/memory.max",
		"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/unified/memory.max",
	}
	if !slices.Equal(files, want) {
		t.Errorf("got  %v\nwant %v", files, want)
	}
	if b, from := leastLimit(root, files); b != 0 || from != "" {
		t.Errorf("no file: got %v of %q, want none", b, from)
	}
	write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n")
	write("/sys/fs/cgroup/s/c/memory.max", "max\n")
	if b, from := leastLimit(root, files); b != 0 || from != "" {
		t.Errorf("no limit: got %v of %q, want none", b, from)
	}
	write("/sys/fs/cgroup/s/memory.max", "1073741824\n")
	write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n")
	if b, from := leastLimit(root, files); b != size.GiB || from != "/sys/fs/cgroup/s/memory.max" {
		t.Errorf("got %v of %q, want the least", b, from)
	}
	if _, _, err := CgroupLimit(os.Getpid()); err != nil {
		t.Error(err)
	}
	if _, _, err := CgroupLimit(-1); err == nil || err.Error() != "device: cgroup of pid -1: open /proc/-1/cgroup: no such file or directory" {
		t.Errorf("error %v", err)
	}
}

func TestAncestorsAreThisProcessAndItsParents(t *testing.T) {
	got := Ancestors(os.Getpid())
	if len(got) < 2 || got[0] != os.Getpid() || got[1] != os.Getppid() {
		t.Errorf("got %v, want %d, %d and so on", got, os.Getpid(), os.Getppid())
	}
	if got := Ancestors(-1); got != nil {
		t.Errorf("got %v of no process", got)
	}
}
