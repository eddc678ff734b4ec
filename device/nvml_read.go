//go:build cgo

package device

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/lull-project/lull/size"
)

// closeWait is how long Close waits for calls that a driver has not answered.
const closeWait = 2 * time.Second

// Read takes the GPU's memory and its processes, in milliseconds on a healthy
// driver. It returns when ctx ends, whether the driver has answered or not; until it
// does, further readings wait for it.
func (g *GPU) Read(ctx context.Context) (Reading, error) {
	late := func() (Reading, error) {
		return Reading{}, gpuError(g.facts.UUID, fmt.Errorf("the driver has not answered: %w", context.Cause(ctx)))
	}
	select {
	case g.reads <- struct{}{}:
	case <-ctx.Done():
		return late()
	}
	type answer struct {
		reading Reading
		err     error
	}
	came := make(chan answer, 1)
	g.calls.Go(func() { // ends when the driver answers
		r, err := g.read()
		<-g.reads
		came <- answer{r, err}
	})
	select {
	case a := <-came:
		return a.reading, a.err
	case <-ctx.Done():
		return late()
	}
}

func (g *GPU) read() (Reading, error) {
	var r Reading
	memory, ret := g.dev.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return r, gpuError(g.facts.UUID, because(ret))
	}
	r.Total, r.Used = size.Bytes(memory.Total), size.Bytes(memory.Total-memory.Free)
	infos, ret := g.dev.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		r.Why = fmt.Sprintf("NVML does not list processes: %v", because(ret))
		return r, nil
	}
	if has(g.lib, "nvmlDeviceGetMPSComputeRunningProcesses") {
		if clients, ret := g.dev.GetMPSComputeRunningProcesses(); ret == nvml.SUCCESS {
			r.MPS = len(clients) > 0
			infos = append(infos, clients...)
		}
	}
	var list []listing
	for _, info := range infos {
		if g.others(info.GpuInstanceId) {
			continue
		}
		l := listing{pid: int(info.Pid), bytes: -1}
		if info.UsedGpuMemory <= math.MaxInt64 { // else NVML_VALUE_NOT_AVAILABLE
			l.bytes = size.Bytes(info.UsedGpuMemory)
		}
		r.MPS = r.MPS || isMPS(l.pid)
		list = append(list, l)
	}
	r.attribute(list, g.here)
	return r, nil
}

// others says that a process or an event belongs to another MIG instance.
func (g *GPU) others(instance uint32) bool {
	return g.instance != noInstance && instance != noInstance && instance != g.instance
}

// Close lets go of NVML. It waits for calls that are under way; where the driver does
// not answer them it says so and leaves the library as it is.
func (g *GPU) Close() error {
	ended := make(chan struct{})
	go func() { g.calls.Wait(); close(ended) }() // ends with the last call
	select {
	case <-ended:
	case <-time.After(closeWait):
		return gpuError(g.facts.UUID, fmt.Errorf("a call of NVML has not returned in %v; the library stays loaded", closeWait))
	}
	if ret := g.lib.Shutdown(); ret != nvml.SUCCESS {
		return gpuError(g.facts.UUID, fmt.Errorf("shutdown: %w", because(ret)))
	}
	return nil
}

// errNoFaults is a GPU that reports none.
var errNoFaults = errors.New("it does not report XID or ECC errors; they are not counted")
