//go:build cgo

package device

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/lull-project/lull/size"
)

// noInstance is NVML's number for "no MIG instance".
const noInstance = 0xFFFFFFFF

// GPU is one NVIDIA GPU, or one MIG instance, by NVML. Its methods are safe for
// concurrent use.
type GPU struct {
	lib nvml.Interface
	// dev has the memory and the processes, card reports faults: the same one unless
	// dev is a MIG instance.
	dev, card nvml.Device
	instance  uint32 // the GPU instance's id, noInstance for a whole GPU
	facts     Facts
	here      pidSpace
	reads     chan struct{}  // one reading at a time
	calls     sync.WaitGroup // calls of NVML that have not returned
}

// OpenGPU opens the GPU that which names: its index as nvidia-smi counts, or the UUID
// of a GPU or of a MIG instance. The error says what is missing. Close it.
func OpenGPU(which string) (*GPU, error) { return openGPU(nvml.New(), which, ownPIDSpace()) }

func openGPU(lib nvml.Interface, which string, here pidSpace) (*GPU, error) {
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return nil, gpuError(which, because(ret))
	}
	g := &GPU{lib: lib, here: here, instance: noInstance, reads: make(chan struct{}, 1)}
	if err := g.find(which); err != nil {
		lib.Shutdown()
		return nil, gpuError(which, err)
	}
	return g, nil
}

// find fills in the device and its facts.
func (g *GPU) find(which string) error {
	var ret nvml.Return
	if index, err := strconv.Atoi(which); err == nil {
		g.dev, ret = g.lib.DeviceGetHandleByIndex(index)
	} else {
		g.dev, ret = g.lib.DeviceGetHandleByUUID(which)
	}
	if ret == nvml.ERROR_INVALID_ARGUMENT || ret == nvml.ERROR_NOT_FOUND {
		return fmt.Errorf("no such GPU here, want %s", g.names())
	}
	if ret != nvml.SUCCESS {
		return because(ret)
	}
	g.card = g.dev
	if strings.HasPrefix(which, "MIG-") {
		if err := g.findCard(); err != nil {
			return err
		}
	} else if parts := migInstances(g.lib, g.dev); parts != nil {
		return fmt.Errorf("it is divided (MIG): processes run on its instances, want the UUID of one: %s", orNone(parts))
	}
	facts, err := factsOf(g.lib, g.dev, g.card)
	if err != nil {
		return err
	}
	facts.Instance = g.instance != noInstance
	if n, ret := g.lib.DeviceGetCount(); ret == nvml.SUCCESS {
		facts.Alone = n == 1 && !facts.Instance
	}
	g.facts = facts
	return nil
}

// findCard finds the GPU that a MIG instance is part of.
func (g *GPU) findCard() error {
	if !has(g.lib, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle") {
		return errors.New("the driver is too old for MIG, want 450 or later")
	}
	card, ret := g.dev.GetDeviceHandleFromMigDeviceHandle()
	if ret != nvml.SUCCESS {
		return because(ret)
	}
	id, ret := g.dev.GetGpuInstanceId()
	if ret != nvml.SUCCESS {
		return because(ret)
	}
	g.card, g.instance = card, uint32(id)
	return nil
}

// has says that the loaded library has a function. One that is missing and called
// all the same ends the whole process: go-nvml binds lazily.
func has(lib nvml.Interface, function string) bool {
	return lib.Extensions().LookupSymbol(function) == nil
}

// migInstances are the UUIDs of a divided GPU's instances, nil where it is whole.
func migInstances(lib nvml.Interface, card nvml.Device) []string {
	if !has(lib, "nvmlDeviceGetMigMode") {
		return nil
	}
	if mode, _, ret := card.GetMigMode(); ret != nvml.SUCCESS || mode != nvml.DEVICE_MIG_ENABLE {
		return nil
	}
	parts := []string{}
	n, _ := card.GetMaxMigDeviceCount()
	for i := range n {
		part, ret := card.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		if id, ret := part.GetUUID(); ret == nvml.SUCCESS {
			parts = append(parts, id)
		}
	}
	return parts
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "there is none"
	}
	return strings.Join(names, ", ")
}

// factsOf reads what does not change.
func factsOf(lib nvml.Interface, dev, card nvml.Device) (Facts, error) {
	var f Facts
	var ret nvml.Return
	if f.UUID, ret = dev.GetUUID(); ret != nvml.SUCCESS {
		return f, because(ret)
	}
	f.Name, _ = dev.GetName()
	f.Driver, _ = lib.SystemGetDriverVersion()
	memory, ret := dev.GetMemoryInfo()
	switch {
	case ret == nvml.ERROR_NOT_SUPPORTED:
		return f, errors.New("NVML does not say its memory (memory shared with the CPU): name the host's memory as a device instead")
	case ret != nvml.SUCCESS:
		return f, because(ret)
	}
	f.Total = size.Bytes(memory.Total)
	f.Notes = notes(lib, card)
	return f, nil
}

// notes are what an operator should know before waiting for a handover.
func notes(lib nvml.Interface, card nvml.Device) []string {
	var found []string
	switch mode, ret := card.GetComputeMode(); {
	case ret != nvml.SUCCESS:
	case mode == nvml.COMPUTEMODE_EXCLUSIVE_PROCESS:
		found = append(found, "its compute mode is exclusive_process: without MPS a job beside the server cannot start (nvidia-smi -c DEFAULT)")
	case mode == nvml.COMPUTEMODE_PROHIBITED:
		found = append(found, "its compute mode is prohibited: no process may use it (nvidia-smi -c DEFAULT)")
	}
	if !has(lib, "nvmlDeviceGetRemappedRows") {
		return found
	}
	_, uncorrectable, pending, failed, ret := card.GetRemappedRows()
	switch {
	case ret != nvml.SUCCESS:
	case failed:
		found = append(found, "a defective memory row could not be remapped: the GPU should be replaced")
	case pending:
		found = append(found, fmt.Sprintf("a defective memory row waits for a reset of the GPU to be remapped (%d were for uncorrectable errors)", uncorrectable))
	}
	return found
}

// names lists what could have been named.
func (g *GPU) names() string {
	all := []string{}
	for _, l := range listed(g.lib) {
		if l.Instance {
			all = append(all, l.UUID)
		} else {
			all = append(all, fmt.Sprintf("%d (%s, %s)", l.Index, l.Name, l.UUID))
		}
	}
	if len(all) == 0 {
		return "one that NVML shows: there is none"
	}
	return "one of " + strings.Join(all, ", ")
}

// ListGPUs lists the GPUs and MIG instances that NVML shows here.
func ListGPUs() ([]Listed, error) { return listGPUs(nvml.New()) }

func listGPUs(lib nvml.Interface) ([]Listed, error) {
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return nil, gpuError("", because(ret))
	}
	defer lib.Shutdown()
	return listed(lib), nil
}

// listed passes over what cannot be read.
func listed(lib nvml.Interface) []Listed {
	var out []Listed
	n, _ := lib.DeviceGetCount()
	for i := range n {
		card, ret := lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		parts := migInstances(lib, card)
		if parts == nil {
			if f, err := factsOf(lib, card, card); err == nil {
				out = append(out, Listed{i, f})
			}
			continue
		}
		for _, id := range parts {
			dev, ret := lib.DeviceGetHandleByUUID(id)
			if ret != nvml.SUCCESS {
				continue
			}
			if f, err := factsOf(lib, dev, card); err == nil {
				f.Instance = true
				out = append(out, Listed{i, f})
			}
		}
	}
	return out
}

// Facts are those of the time when it was opened.
func (g *GPU) Facts() Facts { return g.facts }

// because is what a code of NVML means for an operator.
func because(ret nvml.Return) error {
	switch ret {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return errors.New("libnvidia-ml.so.1 cannot be loaded: this machine has no NVIDIA driver, or it is not shown to this container (--gpus, NVIDIA_DRIVER_CAPABILITIES=utility)")
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return errors.New("the NVIDIA kernel driver is not loaded")
	case nvml.ERROR_NO_PERMISSION:
		return errors.New("no permission: want read and write on /dev/nvidiactl and the GPU's /dev/nvidia0 and so on")
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return errors.New("libnvidia-ml and the loaded kernel driver are of different versions: restart the machine after the driver's upgrade")
	case nvml.ERROR_GPU_IS_LOST:
		return errors.New("the GPU has fallen off the bus: it needs a reset")
	case nvml.ERROR_FUNCTION_NOT_FOUND:
		return errors.New("the driver is too old for this call of NVML")
	}
	return fmt.Errorf("NVML answers %w", ret)
}
