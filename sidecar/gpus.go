package sidecar

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/handover"
)

// ErrNoGPU is wrapped by FindGPUs's error about a GPU that lull.yaml names and that
// cannot be read here.
var ErrNoGPU = errors.New("lull serve relays with this and lends nothing on it")

const onlyRelayed = "; requests are relayed and nothing is lent on it until a restart"

// foundGPU is an open GPU and its first reading.
type foundGPU struct {
	gpu     gpu
	reading device.Reading
}

// foundGPUs are what of a config's GPUs there is.
type foundGPUs struct {
	file     config.File // with capacities, and without the GPUs that are not there
	open     map[string]foundGPU
	problems map[string]string // by the device's id
}

func openGPU(which string) (gpu, error) { return device.OpenGPU(which) }

// findGPUs opens the GPUs that f names. One that cannot be read is no reason to serve
// nobody: its engines are relayed only, and the rest stays.
func findGPUs(f config.File, open func(which string) (gpu, error)) foundGPUs {
	out := foundGPUs{file: f, open: map[string]foundGPU{}, problems: map[string]string{}}
	out.file.Devices = nil
	seen, end := map[string]string{}, time.Now().Add(gpuStart)
	for _, d := range f.Devices {
		if d.Kind != config.KindNVIDIA {
			out.file.Devices = append(out.file.Devices, d)
			continue
		}
		g, err := firstReading(string(d.GPU), max(time.Until(end), gpuLate), open)
		if err == nil {
			d, err = fitGPU(d, g.gpu.Facts(), seen, out.problems)
			if err != nil {
				err = errors.Join(err, g.gpu.Close())
			}
		}
		if err != nil {
			out.problems[d.ID] = err.Error() + onlyRelayed
			continue
		}
		out.open[d.ID] = g
		out.file.Devices = append(out.file.Devices, d)
	}
	out.file.Engines = slices.Clone(f.Engines)
	for i, e := range f.Engines {
		if slices.ContainsFunc(e.Devices, func(id string) bool { return isNVIDIA(f, id) && out.open[id].gpu == nil }) {
			out.file.Engines[i].Devices, out.file.Engines[i].Stages = nil, nil // what it takes of the others could not be judged
		}
	}
	return out
}

func isNVIDIA(f config.File, id string) bool {
	return slices.ContainsFunc(f.Devices, func(d config.Device) bool { return d.ID == id && d.Kind == config.KindNVIDIA })
}

// gpuStart is how long all GPUs together may take to open at the start: several
// seconds are usual where the driver's persistence mode is off, and a driver that
// hangs must not keep requests from being served. Once it is over each further GPU
// has gpuLate: one that is well should not be left out for another's sake.
const gpuStart = 20 * time.Second

// firstReading opens a GPU and reads it once, within a time.
func firstReading(which string, within time.Duration, open func(string) (gpu, error)) (foundGPU, error) {
	type answer struct {
		found foundGPU
		err   error
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	came := make(chan answer)
	go func() { // ends when the driver answers; what comes too late is closed
		var a answer
		if a.found.gpu, a.err = open(which); a.err == nil {
			if a.found.reading, a.err = a.found.gpu.Read(ctx); a.err != nil {
				a.err = errors.Join(a.err, a.found.gpu.Close())
			}
		}
		select {
		case came <- a:
		case <-ctx.Done():
			if a.err == nil {
				_ = a.found.gpu.Close() // nobody is left to tell
			}
		}
	}()
	select {
	case a := <-came:
		return a.found, a.err
	case <-ctx.Done():
		return foundGPU{}, fmt.Errorf("device: gpu %s: the driver has not answered in %v", which, within.Round(100*time.Millisecond))
	}
}

// fitGPU fills in the capacity.
func fitGPU(d config.Device, facts device.Facts, seen map[string]string, problems map[string]string) (config.Device, error) {
	if other := seen[facts.UUID]; other != "" {
		return d, fmt.Errorf("devices.%s.gpu: got %q, which is that of %s (%s), want each GPU once", d.ID, d.GPU, other, facts.UUID)
	}
	if d.Capacity > facts.Total {
		problems[d.ID] = fmt.Sprintf("devices.%s.capacity: got %v, want at most what the GPU has, %v, which counts", d.ID, d.Capacity, facts.Total)
	}
	if d.Capacity == 0 || d.Capacity > facts.Total {
		d.Capacity = facts.Total
	}
	if d.Headroom >= d.Capacity {
		return d, fmt.Errorf("devices.%s.headroom: got %v, want below the GPU's capacity of %v", d.ID, d.Headroom, d.Capacity)
	}
	seen[facts.UUID] = d.ID
	return d, nil
}

// FindGPUs says in a line a GPU what f names, for whoever checks a config. The error
// wraps ErrNoGPU and names each that cannot be read here.
func FindGPUs(f config.File) (lines []string, err error) { return describeGPUs(f, openGPU) }

func describeGPUs(f config.File, open func(string) (gpu, error)) (lines []string, err error) {
	found := findGPUs(f, open)
	var missing []string
	for _, d := range f.Devices {
		g, ok := found.open[d.ID]
		if text := found.problems[d.ID]; text != "" && ok {
			lines = append(lines, text)
		} else if text != "" {
			missing = append(missing, strings.TrimSuffix(text, onlyRelayed))
		}
		if !ok {
			continue
		}
		lines = append(lines, fmt.Sprintf("devices.%s: %v; %v", d.ID, g.gpu.Facts(), g.reading))
		if wrong := g.gpu.Close(); wrong != nil {
			lines = append(lines, wrong.Error())
		}
	}
	if len(missing) > 0 {
		err = fmt.Errorf("%s: %w", strings.Join(missing, "; "), ErrNoGPU)
	}
	return lines, err
}

// wireDevices makes the drivers of the GPUs and says in the state what devices there
// are, and of those that there are not why.
func (s *Sidecar) wireDevices() {
	s.gpus = map[handover.DeviceID]*gpuDriver{}
	for _, d := range s.file.Devices {
		s.loop.view.device(DeviceState{ID: d.ID, Kind: d.Kind, Truth: truthProcesses, Capacity: int64(d.Capacity)})
		if g, ok := s.found.open[d.ID]; ok {
			s.gpus[handover.DeviceID(d.ID)] = newGPUDriver(s.loop, d, g)
			s.log.Info("GPU", "device", d.ID, "gpu", g.gpu.Facts().String(), "capacity", d.Capacity, "now", g.reading.String())
		}
	}
	for id, text := range s.found.problems {
		s.log.Error("a GPU of lull.yaml is not as it says", "device", id, "err", text)
		s.loop.view.problem("devices "+id, text)
		if _, ok := s.found.open[id]; !ok {
			s.loop.view.device(DeviceState{ID: id, Kind: config.KindNVIDIA, LeftOut: true, Why: text})
		}
	}
}
