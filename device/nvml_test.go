//go:build cgo

package device

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/lull-project/lull/size"
)

func TestGPUIsOpenedByIndexAndByUUID(t *testing.T) {
	card := fakeCard()
	for which, alone := range map[string]bool{"0": true, wholeUUID: true} {
		g := openFake(t, fakeLib(nil, card), which, first)
		want := Facts{Name: "NVIDIA H100 80GB HBM3", UUID: wholeUUID, Driver: "570.86.15", Total: 80 * size.GiB, Alone: alone}
		if got := g.Facts(); got.String() != want.String() || got.Alone != alone || got.Instance {
			t.Errorf("%s: got %+v, want %+v", which, got, want)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
	if g := openFake(t, fakeLib(nil, card, fakeCard()), "1", first); g.Facts().Alone {
		t.Error("one of two GPUs says that it is alone")
	}
	part := fakePart(card)
	g := openFake(t, fakeLib(nil, card, part), partUUID, first)
	if f := g.Facts(); !f.Instance || f.Alone || f.Total != 10*size.GiB || f.UUID != partUUID {
		t.Errorf("instance: got %+v", f)
	}
}

func TestOpenSaysWhatIsMissing(t *testing.T) {
	broken := func(ret nvml.Return) *mock.Interface {
		lib := fakeLib(nil)
		lib.InitFunc = func() nvml.Return { return ret }
		return lib
	}
	unified := fakeCard()
	unified.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_NOT_SUPPORTED }
	card, bare := fakeCard(), fakeCard()
	part := fakePart(card)
	divide(card, part)
	divide(bare, nil)
	for name, c := range map[string]struct {
		lib         nvml.Interface
		which, want string
	}{
		"no library": {broken(nvml.ERROR_LIBRARY_NOT_FOUND), "0", "device: gpu 0: libnvidia-ml.so.1 cannot be loaded: this machine has no NVIDIA driver, or it is not shown to this container (--gpus, NVIDIA_DRIVER_CAPABILITIES=utility)"},
		"no driver":  {broken(nvml.ERROR_DRIVER_NOT_LOADED), "0", "device: gpu 0: the NVIDIA kernel driver is not loaded"},
		"no right":   {broken(nvml.ERROR_NO_PERMISSION), "0", "device: gpu 0: no permission: want read and write on /dev/nvidiactl and the GPU's /dev/nvidia0 and so on"},
		"mismatch":   {broken(nvml.ERROR_LIB_RM_VERSION_MISMATCH), "0", "device: gpu 0: libnvidia-ml and the loaded kernel driver are of different versions: restart the machine after the driver's upgrade"},
		"lost":       {broken(nvml.ERROR_GPU_IS_LOST), "0", "device: gpu 0: the GPU has fallen off the bus: it needs a reset"},
		"too old":    {broken(nvml.ERROR_FUNCTION_NOT_FOUND), "0", "device: gpu 0: the driver is too old for this call of NVML"},
		"unknown":    {broken(nvml.ERROR_UNKNOWN), "0", "device: gpu 0: NVML answers ERROR_UNKNOWN"},
		"no GPU":     {fakeLib(nil), "0", "device: gpu 0: no such GPU here, want one that NVML shows: there is none"},
		"not this":   {fakeLib(nil, fakeCard()), "3", "device: gpu 3: no such GPU here, want one of 0 (NVIDIA H100 80GB HBM3, " + wholeUUID + ")"},
		"nor UUID":   {fakeLib(nil, card, part), "GPU-0", "device: gpu GPU-0: no such GPU here, want one of " + partUUID},
		"divided":    {fakeLib(nil, card, part), "0", "device: gpu 0: it is divided (MIG): processes run on its instances, want the UUID of one: " + partUUID},
		"no part":    {fakeLib(nil, bare), "0", "device: gpu 0: it is divided (MIG): processes run on its instances, want the UUID of one: there is none"},
		"MIG of old": {fakeLib([]string{"nvmlDeviceGetDeviceHandleFromMigDeviceHandle"}, part), partUUID, "device: gpu " + partUUID + ": the driver is too old for MIG, want 450 or later"},
		"unified":    {fakeLib(nil, unified), "0", "device: gpu 0: NVML does not say its memory (memory shared with the CPU): name the host's memory as a device instead"},
	} {
		if _, err := openGPU(c.lib, c.which, first); err == nil || err.Error() != c.want {
			t.Errorf("%s:\ngot  %v\nwant %s", name, err, c.want)
		}
	}
	if _, err := listGPUs(broken(nvml.ERROR_LIBRARY_NOT_FOUND)); err == nil || !strings.HasPrefix(err.Error(), "device: gpus: libnvidia-ml.so.1 cannot be loaded") {
		t.Errorf("list: %v", err)
	}
}

// A function that the library has not ends the process when it is called, so it must
// not be: the fakes panic.
func TestFunctionsThatAnOldLibraryLacksAreNotCalled(t *testing.T) {
	card := fakeCard()
	card.GetMigModeFunc, card.GetRemappedRowsFunc, card.GetMPSComputeRunningProcessesFunc = nil, nil, nil
	lib := fakeLib([]string{"nvmlDeviceGetMigMode", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetMPSComputeRunningProcesses"}, card)
	if _, err := openFake(t, lib, "0", first).Read(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestListHasWholeGPUsAndInstances(t *testing.T) {
	card, other := fakeCard(), fakeCard()
	part := fakePart(card)
	divide(card, part)
	other.GetUUIDFunc = func() (string, nvml.Return) { return "GPU-2", nvml.SUCCESS }
	all, err := listGPUs(fakeLib(nil, card, part, other))
	if err != nil || len(all) != 2 || all[0].UUID != partUUID || !all[0].Instance || all[0].Index != 0 || all[1].UUID != "GPU-2" || all[1].Index != 1 {
		t.Errorf("got %+v, %v, want the instance of the first and the second", all, err)
	}
}

func TestNotesSayWhatStandsInTheWay(t *testing.T) {
	for _, c := range []struct {
		mode            nvml.ComputeMode
		pending, failed bool
		want            string
	}{
		{nvml.COMPUTEMODE_DEFAULT, false, false, ""},
		{nvml.COMPUTEMODE_EXCLUSIVE_PROCESS, false, false, "its compute mode is exclusive_process: without MPS a job beside the server cannot start (nvidia-smi -c DEFAULT)"},
		{nvml.COMPUTEMODE_PROHIBITED, false, false, "its compute mode is prohibited: no process may use it (nvidia-smi -c DEFAULT)"},
		{nvml.COMPUTEMODE_DEFAULT, true, false, "a defective memory row waits for a reset of the GPU to be remapped (2 were for uncorrectable errors)"},
		{nvml.COMPUTEMODE_DEFAULT, true, true, "a defective memory row could not be remapped: the GPU should be replaced"},
	} {
		card := fakeCard()
		card.GetComputeModeFunc = func() (nvml.ComputeMode, nvml.Return) { return c.mode, nvml.SUCCESS }
		card.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 1, 2, c.pending, c.failed, nvml.SUCCESS }
		if got := strings.Join(openFake(t, fakeLib(nil, card), "0", first).Facts().Notes, "; "); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestReadJoinsTheListsOfProcesses(t *testing.T) {
	card := fakeCard()
	card.GetComputeRunningProcessesFunc = processes(process(70, 12<<30, noInstance), process(71, 1<<30, noInstance), process(72, ^uint64(0), noInstance), process(73, 0, noInstance))
	card.GetMPSComputeRunningProcessesFunc = processes(process(71, 3<<30, noInstance), process(73, 1<<20, noInstance))
	r, err := openFake(t, fakeLib(nil, card), "0", first).Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := map[int]size.Bytes{70: 12 * size.GiB, 71: 3 * size.GiB, 73: size.MiB}
	if !maps.Equal(r.Processes, want) || !slices.Equal(r.Unread, []int{72}) || !r.MPS || r.Why != "" {
		t.Errorf("got %+v, want %v, 72 without a figure, and MPS", r, want)
	}
	if r.Total != 80*size.GiB || r.Used != 20*size.GiB {
		t.Errorf("total %v used %v, want 80 GiB, and all that is not free", r.Total, r.Used)
	}
	if b, err := r.Process(70); err != nil || b != 12*size.GiB {
		t.Errorf("pid 70: %v, %v", b, err)
	}
	if b, err := r.Process(99); err != nil || b != 0 {
		t.Errorf("pid 99, not listed: %v, %v, want none", b, err)
	}
	const text = "device: bytes of pid 72: the driver does not say what this process holds: NVML lists it without a figure (a container's PID namespace, or a driver that does not count)"
	if _, err := r.Process(72); !errors.Is(err, ErrUnreadable) || err.Error() != text {
		t.Errorf("pid 72: %v, want %s", err, text)
	}
}

func TestInstanceCountsItsOwnProcessesOnly(t *testing.T) {
	card := fakeCard()
	part := fakePart(card)
	part.GetComputeRunningProcessesFunc = processes(process(70, 1<<30, 3), process(71, 2<<30, 4), process(72, 3<<30, noInstance))
	r, err := openFake(t, fakeLib(nil, card, part), partUUID, first).Read(t.Context())
	if want := (map[int]size.Bytes{70: size.GiB, 72: 3 * size.GiB}); err != nil || !maps.Equal(r.Processes, want) {
		t.Errorf("got %+v, %v, want %v", r, err, want)
	}
}

func TestReadSaysWhyItFails(t *testing.T) {
	card := fakeCard()
	g := openFake(t, fakeLib(nil, card), "0", first)
	card.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_NO_PERMISSION }
	r, err := g.Read(t.Context())
	if want := "NVML does not list processes: no permission: want read and write on /dev/nvidiactl and the GPU's /dev/nvidia0 and so on"; err != nil || r.Why != want || r.Used != 20*size.GiB {
		t.Errorf("got %+v, %v, want the memory, and %s", r, err, want)
	}
	if _, err := r.Process(1); !errors.Is(err, ErrUnreadable) || !strings.Contains(err.Error(), r.Why) {
		t.Errorf("a process then: %v", err)
	}
	card.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST }
	want := "device: gpu " + wholeUUID + ": the GPU has fallen off the bus: it needs a reset"
	if _, err := g.Read(t.Context()); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestDriverThatHangsHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		card, answer := fakeCard(), make(chan struct{})
		g := openFake(t, fakeLib(nil, card), "0", first)
		card.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { <-answer; return nil, nvml.SUCCESS }
		for range 2 { // the second waits for the first one's call
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("none in 1s"))
			_, err := g.Read(ctx)
			cancel()
			if want := "device: gpu " + wholeUUID + ": the driver has not answered: none in 1s"; err == nil || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
		}
		want := "device: gpu " + wholeUUID + ": a call of NVML has not returned in 2s; the library stays loaded"
		if err := g.Close(); err == nil || err.Error() != want {
			t.Errorf("close: %v, want %s", err, want)
		}
		close(answer)
		synctest.Wait()
		if _, err := g.Read(t.Context()); err != nil {
			t.Errorf("once it answers: %v", err)
		}
		if err := g.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

func TestCloseSaysWhatNVMLAnswers(t *testing.T) {
	lib := fakeLib(nil, fakeCard())
	g := openFake(t, lib, "0", first)
	lib.ShutdownFunc = func() nvml.Return { return nvml.ERROR_UNINITIALIZED }
	if err := g.Close(); err == nil || err.Error() != "device: gpu "+wholeUUID+": shutdown: NVML answers ERROR_UNINITIALIZED" {
		t.Errorf("got %v", err)
	}
}

// On a machine with a GPU this reads it, elsewhere it is what a user sees.
func TestOpenOnThisMachine(t *testing.T) {
	g, err := OpenGPU("0")
	if err != nil {
		if !strings.HasPrefix(err.Error(), "device: gpu 0: ") {
			t.Error(err)
		}
		if _, err := ListGPUs(); err == nil {
			t.Error("the list of GPUs was read where none could be opened")
		}
		return
	}
	r, err := g.Read(t.Context())
	if err != nil || r.Total <= 0 || r.Used > r.Total {
		t.Errorf("got %+v, %v", r, err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}
