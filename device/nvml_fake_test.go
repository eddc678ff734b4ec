//go:build cgo

package device

import (
	"errors"
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// A fake driver is go-nvml's own mock with the answers of a driver; a function that
// is not set here panics when it is called.

const (
	wholeUUID = "GPU-ea5a7f29-c714-06ba-23ef-cedbc44248da"
	partUUID  = "MIG-0c5a7f29-c714-06ba-23ef-cedbc44248da"
)

// fakeCard has 80 GiB, of which 20 are in use.
func fakeCard() *mock.Device {
	return &mock.Device{
		GetUUIDFunc:        func() (string, nvml.Return) { return wholeUUID, nvml.SUCCESS },
		GetNameFunc:        func() (string, nvml.Return) { return "NVIDIA H100 80GB HBM3", nvml.SUCCESS },
		GetMigModeFunc:     func() (int, int, nvml.Return) { return 0, 0, nvml.SUCCESS },
		GetComputeModeFunc: func() (nvml.ComputeMode, nvml.Return) { return nvml.COMPUTEMODE_DEFAULT, nvml.SUCCESS },
		GetRemappedRowsFunc: func() (int, int, bool, bool, nvml.Return) {
			return 0, 0, false, false, nvml.SUCCESS
		},
		GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
			return nvml.Memory{Total: 80 << 30, Free: 60 << 30, Used: 19 << 30}, nvml.SUCCESS // used has no driver's share
		},
		GetComputeRunningProcessesFunc:    processes(),
		GetMPSComputeRunningProcessesFunc: processes(),
	}
}

// fakePart is a MIG instance of 10 GiB with the GPU instance id 3.
func fakePart(card *mock.Device) *mock.Device {
	part := fakeCard()
	part.GetUUIDFunc = func() (string, nvml.Return) { return partUUID, nvml.SUCCESS }
	part.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) {
		return nvml.Memory{Total: 10 << 30, Free: 9 << 30}, nvml.SUCCESS
	}
	part.GetDeviceHandleFromMigDeviceHandleFunc = func() (nvml.Device, nvml.Return) { return card, nvml.SUCCESS }
	part.GetGpuInstanceIdFunc = func() (int, nvml.Return) { return 3, nvml.SUCCESS }
	return part
}

// divide makes the card one whose MIG mode is on.
func divide(card, part *mock.Device) {
	card.GetMigModeFunc = func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS }
	card.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	card.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i == 0 && part != nil {
			return part, nvml.SUCCESS
		}
		return nil, nvml.ERROR_NOT_FOUND
	}
}

func processes(list ...nvml.ProcessInfo) func() ([]nvml.ProcessInfo, nvml.Return) {
	return func() ([]nvml.ProcessInfo, nvml.Return) { return list, nvml.SUCCESS }
}

func process(pid uint32, bytes uint64, instance uint32) nvml.ProcessInfo {
	return nvml.ProcessInfo{Pid: pid, UsedGpuMemory: bytes, GpuInstanceId: instance, ComputeInstanceId: noInstance}
}

// fakeLib shows these devices; missing are the functions that the library has not.
func fakeLib(missing []string, devices ...*mock.Device) *mock.Interface {
	var whole []*mock.Device
	for _, d := range devices {
		if d.GetGpuInstanceIdFunc == nil {
			whole = append(whole, d)
		}
	}
	return &mock.Interface{
		InitFunc:                   func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:               func() nvml.Return { return nvml.SUCCESS },
		SystemGetDriverVersionFunc: func() (string, nvml.Return) { return "570.86.15", nvml.SUCCESS },
		DeviceGetCountFunc:         func() (int, nvml.Return) { return len(whole), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			if i >= len(whole) {
				return nil, nvml.ERROR_INVALID_ARGUMENT
			}
			return whole[i], nvml.SUCCESS
		},
		DeviceGetHandleByUUIDFunc: func(id string) (nvml.Device, nvml.Return) {
			for _, d := range devices {
				if own, _ := d.GetUUID(); own == id {
					return d, nvml.SUCCESS
				}
			}
			return nil, nvml.ERROR_NOT_FOUND
		},
		ExtensionsFunc: func() nvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(name string) error {
				if slices.Contains(missing, name) {
					return errors.New("symbol not found")
				}
				return nil
			}}
		},
	}
}

// first is the machine's own PID namespace.
var first = pidSpace{first: true}

func openFake(t *testing.T, lib nvml.Interface, which string, here pidSpace) *GPU {
	t.Helper()
	g, err := openGPU(lib, which, here)
	if err != nil {
		t.Fatal(err)
	}
	return g
}
