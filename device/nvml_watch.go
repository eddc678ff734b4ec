//go:build cgo

package device

import (
	"context"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// faultEvents are the events of NVML that are faults.
const faultEvents = nvml.EventTypeXidCriticalError | nvml.EventTypeSingleBitEccError | nvml.EventTypeDoubleBitEccError |
	nvml.EventTypeDramRetirementEvent | nvml.EventTypeDramRetirementFailure

// eventWaitMS is how long one wait for an event lasts, in ms: NVML's wait cannot be
// ended from outside, so a closing GPU waits at most this long for it.
const eventWaitMS = 200

// Watch tells of each fault until ctx ends, which is no error. It returns earlier,
// with the reason, where the driver reports no faults, or no more of them. tell is
// called on Watch's own goroutine.
func (g *GPU) Watch(ctx context.Context, tell func(Fault)) error {
	set, err := g.register()
	if err != nil {
		return gpuError(g.facts.UUID, err)
	}
	faults, ended := make(chan Fault), make(chan error, 1)
	g.calls.Go(func() { // ends within eventWaitMS of ctx
		ended <- g.wait(ctx, set, faults)
		set.Free()
	})
	for {
		select {
		case f := <-faults:
			tell(f)
		case err := <-ended:
			if ctx.Err() != nil {
				return nil
			}
			return gpuError(g.facts.UUID, err)
		case <-ctx.Done():
			return nil
		}
	}
}

// register makes a set of the fault events that the card has.
func (g *GPU) register() (nvml.EventSet, error) {
	supported, ret := g.card.GetSupportedEventTypes()
	if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.SUCCESS && supported&faultEvents == 0 {
		return nil, errNoFaults
	}
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("faults: %w", because(ret))
	}
	set, ret := g.lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("faults: %w", because(ret))
	}
	if ret := g.card.RegisterEvents(supported&faultEvents, set); ret != nvml.SUCCESS {
		set.Free()
		if ret == nvml.ERROR_NOT_SUPPORTED {
			return nil, errNoFaults
		}
		return nil, fmt.Errorf("faults: %w", because(ret))
	}
	return set, nil
}

// wait hands faults over until ctx ends or the driver has no more to say.
func (g *GPU) wait(ctx context.Context, set nvml.EventSet, faults chan<- Fault) error {
	hand := func(f Fault) {
		select {
		case faults <- f:
		case <-ctx.Done():
		}
	}
	for ctx.Err() == nil {
		event, ret := set.Wait(eventWaitMS)
		switch ret {
		case nvml.SUCCESS:
			if f, ok := faultOf(event); ok && !g.others(event.GpuInstanceId) {
				hand(f)
			}
		case nvml.ERROR_TIMEOUT:
		case nvml.ERROR_GPU_IS_LOST:
			hand(Fault{Kind: FaultLost, Text: because(ret).Error()})
			return errors.New("the GPU is lost; its faults are watched no more")
		default:
			return fmt.Errorf("faults are watched no more: %w", because(ret))
		}
	}
	return nil
}

func faultOf(e nvml.EventData) (Fault, bool) {
	switch e.EventType {
	case nvml.EventTypeXidCriticalError:
		return xidFault(e.EventData), true
	case nvml.EventTypeSingleBitEccError:
		return Fault{Kind: FaultCorrected, Text: "corrected ECC error"}, true
	case nvml.EventTypeDoubleBitEccError:
		return Fault{Kind: FaultUncorrected, Text: "uncorrected ECC error"}, true
	case nvml.EventTypeDramRetirementEvent:
		return Fault{Kind: FaultRetired, Text: "defective memory was retired"}, true
	case nvml.EventTypeDramRetirementFailure:
		return Fault{Kind: FaultRetired, Text: "defective memory could not be retired"}, true
	}
	return Fault{}, false
}
