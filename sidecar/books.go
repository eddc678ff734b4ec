package sidecar

import (
	"context"

	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/size"
)

// books are a device's own word about what a process and those below it hold there.
// Host memory and GPUs both keep them.
type books interface {
	// One figure a device of the engine, in their order; host memory has one.
	trees(ctx context.Context, pid int) ([]size.Bytes, error)
	// beyond says whether a process has bytes there before it takes device memory (its
	// baseline): host memory, but no GPU.
	beyond() bool
}

// hostBooks are /proc.
type hostBooks struct{}

func (hostBooks) trees(_ context.Context, pid int) ([]size.Bytes, error) {
	b, err := device.ReadTree(pid)
	return []size.Bytes{b}, err
}

func (hostBooks) beyond() bool { return true }

// gpuBooks are those of the GPUs that one engine is on.
type gpuBooks []*gpuDriver

func (g gpuBooks) beyond() bool { return false }

func (g gpuBooks) trees(ctx context.Context, pid int) ([]size.Bytes, error) {
	var out []size.Bytes
	for _, d := range g {
		b, err := d.tree(ctx, pid)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// gpu is one GPU's own account; device.GPU is one.
type gpu interface {
	Facts() device.Facts
	// Read returns when ctx ends, whatever the driver does.
	Read(ctx context.Context) (device.Reading, error)
	// Watch tells of faults until ctx ends.
	Watch(ctx context.Context, tell func(device.Fault)) error
	Close() error
}

var _ gpu = (*device.GPU)(nil)
