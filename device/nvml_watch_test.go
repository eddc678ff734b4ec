//go:build cgo

package device

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// recorded is what a driver's event set answers, in order; then it times out.
type recorded struct {
	event nvml.EventData
	ret   nvml.Return
}

func event(kind, data uint64, instance uint32) recorded {
	return recorded{nvml.EventData{EventType: kind, EventData: data, GpuInstanceId: instance}, nvml.SUCCESS}
}

// withEvents makes a card that reports them, and counts what was freed.
func withEvents(lib *mock.Interface, card *mock.Device, answers ...recorded) (freed *int) {
	freed = new(int)
	card.GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return nvml.EventTypeAll, nvml.SUCCESS }
	card.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.SUCCESS }
	set := &mock.EventSet{FreeFunc: func() nvml.Return { *freed++; return nvml.SUCCESS }}
	set.WaitFunc = func(ms uint32) (nvml.EventData, nvml.Return) {
		if len(answers) > 0 {
			next := answers[0]
			answers = answers[1:]
			return next.event, next.ret
		}
		time.Sleep(time.Duration(ms) * time.Millisecond) // the library waits inside; the clock is the bubble's
		return nvml.EventData{}, nvml.ERROR_TIMEOUT
	}
	lib.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return set, nvml.SUCCESS }
	return freed
}

func watched(t *testing.T, g *GPU) (texts []string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err = g.Watch(ctx, func(f Fault) {
		text := f.Kind + ": " + f.Text
		if f.Job {
			text += " by a process"
		}
		texts = append(texts, text)
	})
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	return texts, err
}

func TestFaultsAreToldUntilTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		card := fakeCard()
		lib := fakeLib(nil, card)
		freed := withEvents(lib, card,
			event(nvml.EventTypeXidCriticalError, 94, noInstance), event(nvml.EventTypeXidCriticalError, 31, noInstance),
			recorded{ret: nvml.ERROR_TIMEOUT}, event(nvml.EventTypeXidCriticalError, 999, noInstance), event(nvml.EventTypeClock, 0, noInstance),
			event(nvml.EventTypeSingleBitEccError, 0, noInstance), event(nvml.EventTypeDoubleBitEccError, 0, noInstance),
			event(nvml.EventTypeDramRetirementEvent, 0, noInstance), event(nvml.EventTypeDramRetirementFailure, 0, noInstance))
		got, err := watched(t, openFake(t, lib, "0", first))
		want := []string{
			"xid: XID 94 (contained memory error)", "xid: XID 31 (memory page fault) by a process", "xid: XID 999 (see NVIDIA's XID catalog)",
			"ecc_corrected: corrected ECC error", "ecc_uncorrected: uncorrected ECC error",
			"retired: defective memory was retired", "retired: defective memory could not be retired",
		}
		if err != nil || !slices.Equal(got, want) || *freed != 1 {
			t.Errorf("got %q, %v, %d sets freed; want %q", got, err, *freed, want)
		}
	})
}

func TestFaultsOfOtherInstancesArePassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		card := fakeCard()
		part := fakePart(card)
		lib := fakeLib(nil, card, part)
		withEvents(lib, card, event(nvml.EventTypeXidCriticalError, 94, 4), event(nvml.EventTypeXidCriticalError, 95, 3), event(nvml.EventTypeXidCriticalError, 79, noInstance))
		got, err := watched(t, openFake(t, lib, partUUID, first))
		want := []string{"xid: XID 95 (uncontained memory error)", "xid: XID 79 (the GPU has fallen off the bus)"}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	})
}

func TestWatchSaysWhyItEnds(t *testing.T) {
	no := func(ret nvml.Return) func(uint64, nvml.EventSet) nvml.Return {
		return func(uint64, nvml.EventSet) nvml.Return { return ret }
	}
	const prefix = "device: gpu " + wholeUUID + ": "
	for name, c := range map[string]struct {
		spoil  func(*mock.Interface, *mock.Device)
		events []recorded
		want   string
		told   []string
	}{
		"none supported": {spoil: func(_ *mock.Interface, d *mock.Device) {
			d.GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return nvml.EventTypeClock, nvml.SUCCESS }
		}, want: "it does not report XID or ECC errors; they are not counted"},
		"not asked": {spoil: func(_ *mock.Interface, d *mock.Device) {
			d.GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return 0, nvml.ERROR_NO_PERMISSION }
		}, want: "faults: no permission: want read and write on /dev/nvidiactl and the GPU's /dev/nvidia0 and so on"},
		"no set": {spoil: func(lib *mock.Interface, _ *mock.Device) {
			lib.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return nil, nvml.ERROR_UNKNOWN }
		}, want: "faults: NVML answers ERROR_UNKNOWN"},
		"not registered": {spoil: func(_ *mock.Interface, d *mock.Device) { d.RegisterEventsFunc = no(nvml.ERROR_UNKNOWN) },
			want: "faults: NVML answers ERROR_UNKNOWN"},
		"not supported": {spoil: func(_ *mock.Interface, d *mock.Device) { d.RegisterEventsFunc = no(nvml.ERROR_NOT_SUPPORTED) },
			want: "it does not report XID or ECC errors; they are not counted"},
		"lost": {events: []recorded{{ret: nvml.ERROR_GPU_IS_LOST}}, want: "the GPU is lost; its faults are watched no more",
			told: []string{"lost: the GPU has fallen off the bus: it needs a reset"}},
		"broken": {events: []recorded{{ret: nvml.ERROR_UNKNOWN}}, want: "faults are watched no more: NVML answers ERROR_UNKNOWN"},
	} {
		synctest.Test(t, func(t *testing.T) {
			card := fakeCard()
			lib := fakeLib(nil, card)
			withEvents(lib, card, c.events...)
			if c.spoil != nil {
				c.spoil(lib, card)
			}
			told, err := watched(t, openFake(t, lib, "0", first))
			if err == nil || err.Error() != prefix+c.want || !slices.Equal(told, c.told) {
				t.Errorf("%s: got %q, %v\nwant %q, %s", name, told, err, c.told, prefix+c.want)
			}
		})
	}
}
