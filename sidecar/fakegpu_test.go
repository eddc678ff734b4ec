package sidecar

import (
	"context"
	"errors"
	"os"
	"sync"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/size"
)

// fakeGPU is a GPU whose memory is that of this test's child processes: what the
// engine and the trainers really hold of the host's, all their bytes, as a driver
// would count a process's context too.
type fakeGPU struct {
	facts  device.Facts
	faults chan device.Fault

	mu      sync.Mutex
	why     string     // processes cannot be told apart
	unread  bool       // processes are listed without a figure
	foreign size.Bytes // of somebody else
	broken  error
	closed  int
}

const fakeUUID = "GPU-ea5a7f29-c714-06ba-23ef-cedbc44248da"

func newFakeGPU(total size.Bytes) *fakeGPU {
	return &fakeGPU{facts: device.Facts{Name: "NVIDIA Fake", UUID: fakeUUID, Driver: "570.86", Total: total, Alone: true}, faults: make(chan device.Fault)}
}

func (g *fakeGPU) open(string) (gpu, error) { return g, nil }

func (g *fakeGPU) set(change func(*fakeGPU)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(g)
}

func (g *fakeGPU) Facts() device.Facts { return g.facts }

func (g *fakeGPU) Read(context.Context) (device.Reading, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.broken != nil {
		return device.Reading{}, g.broken
	}
	r := device.Reading{Total: g.facts.Total, Used: g.foreign, Processes: map[int]size.Bytes{}, Why: g.why}
	pids, err := device.Descendants(os.Getpid())
	if err != nil {
		return r, err
	}
	for _, pid := range pids[1:] {
		p, err := device.Open(pid)
		if err != nil {
			continue
		}
		b, err := p.Read()
		_ = p.Close()
		if err != nil {
			continue
		}
		r.Used += b
		switch {
		case g.why != "":
		case g.unread:
			r.Unread = append(r.Unread, pid)
		default:
			r.Processes[pid] = b
		}
	}
	return r, nil
}

func (g *fakeGPU) Watch(ctx context.Context, tell func(device.Fault)) error {
	for {
		select {
		case f := <-g.faults:
			if f.Kind == "" {
				return errors.New("device: gpu: faults are watched no more")
			}
			tell(f)
		case <-ctx.Done():
			return nil
		}
	}
}

func (g *fakeGPU) Close() error {
	g.set(func(g *fakeGPU) { g.closed++ })
	return nil
}

// onGPU makes the rig's only device one, under the name that the fake trainer says.
func onGPU(f *config.File) {
	f.Devices = []config.Device{{ID: "host0", Kind: config.KindNVIDIA, GPU: "0", Headroom: rigHeadroom}}
}

// rigTotal is what a GPU must have for the rig's elastic bytes: the processes' own
// memory counts on it too.
const rigTotal = rigResident + rigElastic + fakeFloor + rigHeadroom + 160*size.MiB
