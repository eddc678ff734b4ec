//go:build cgo

package device

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const libraryEnv = "LULL_DEVICE_LIBRARY" // path of a libnvidia-ml

func init() {
	if os.Getenv(libraryEnv) != "" {
		readLibrary()
		os.Exit(0)
	}
}

// readLibrary is what the process under test does: it must be one of its own, since
// functions of a library stay bound once they were called.
func readLibrary() {
	g, err := openGPU(nvml.New(nvml.WithLibraryPath(os.Getenv(libraryEnv))), "0", first)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(g.Facts())
	fmt.Println(openGPU(nvml.New(nvml.WithLibraryPath(os.Getenv(libraryEnv))), "7", first))
	r, err := g.Read(context.Background())
	fmt.Println(r, err)
	fmt.Println(r.Process(os.Getpid()))
	ctx, cancel := context.WithCancel(context.Background())
	fmt.Println(g.Watch(ctx, func(f Fault) { fmt.Println(f.Text); cancel() }))
	fmt.Println(g.Close())
}

// The mocks of the other tests know nothing of dlopen and of functions that are not
// there, which end a process when they are called.
func TestLibraryOfAnOldDriverIsReadThroughCGO(t *testing.T) {
	lib := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", lib, "testdata/nvml_stub.c").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), libraryEnv+"="+lib)
	out, err := cmd.CombinedOutput()
	want := strings.Join([]string{
		"Tesla Stub, 16.0GiB, GPU-stub, driver 418.1; its compute mode is exclusive_process: without MPS a job beside the server cannot start (nvidia-smi -c DEFAULT)",
		"<nil> device: gpu 7: no such GPU here, want one of 0 (Tesla Stub, GPU-stub)",
		"4.0GiB in use, the bytes of 1 processes read, 1 more listed without theirs <nil>",
		"3.0GiB <nil>", "XID 79 (the GPU has fallen off the bus)", "<nil>", "<nil>", "",
	}, "\n")
	if err != nil || string(out) != want {
		t.Errorf("%v, got\n%swant\n%s", err, out, want)
	}
	if err := os.Remove(lib); err != nil {
		t.Fatal(err)
	}
	again := exec.Command(os.Args[0])
	again.Env = cmd.Env
	out, err = again.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "device: gpu 0: libnvidia-ml.so.1 cannot be loaded: ") {
		t.Errorf("without the library: %v, %s", err, out)
	}
}
