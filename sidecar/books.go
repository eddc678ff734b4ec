package sidecar

import (
	"context"

	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/size"
)

// books are a device's own word about what a process and those below it hold there.
// Host memory and GPUs both keep them.
type books interface {
	tree(ctx context.Context, pid int) (size.Bytes, error)
	// beyond says whether a process has bytes there before it takes device memory (its
	// baseline): host memory, but no GPU.
	beyond() bool
}

// hostBooks are /proc.
type hostBooks struct{}

func (hostBooks) tree(_ context.Context, pid int) (size.Bytes, error) { return device.ReadTree(pid) }
func (hostBooks) beyond() bool                                        { return true }

// gpuBooks are those of the GPUs that one engine is on. It takes bytes from all of
// them alike, so the fullest one counts.
type gpuBooks []*gpuDriver

func (g gpuBooks) beyond() bool { return false }

func (g gpuBooks) tree(ctx context.Context, pid int) (size.Bytes, error) {
	var most size.Bytes
	for _, d := range g {
		b, err := d.tree(ctx, pid)
		if err != nil {
			return 0, err
		}
		most = max(most, b)
	}
	return most, nil
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
