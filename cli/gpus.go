package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/lull-project/lull/device"
)

// readGPU reads one GPU once.
func readGPU(ctx context.Context, uuid string) (device.Reading, error) {
	g, err := device.OpenGPU(uuid)
	if err != nil {
		return device.Reading{}, err
	}
	r, err := g.Read(ctx)
	if wrong := g.Close(); err == nil {
		err = wrong
	}
	return r, err
}

// probeGPUs prints what NVML shows here, and the lines for lull.yaml. A GPU that is
// listed and cannot be read is an error once all have been printed.
func probeGPUs(ctx context.Context, w io.Writer, list func() ([]device.Listed, error), read func(ctx context.Context, uuid string) (device.Reading, error)) error {
	all, err := list()
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	if len(all) == 0 {
		return fmt.Errorf("probe: NVML shows no GPU here")
	}
	var trouble error
	for _, l := range all {
		fmt.Fprintf(w, "gpu %d: %v\n", l.Index, l.Facts)
		r, err := read(ctx, l.UUID)
		if err != nil {
			trouble = fmt.Errorf("probe: %w", err)
			fmt.Fprintf(w, "  %v\n", err)
			continue
		}
		fmt.Fprintf(w, "  %v\n", r)
	}
	fmt.Fprintln(w, "lines for lull.yaml\ndevices:")
	for i, l := range all {
		fmt.Fprintf(w, "  - id: gpu%d\n    kind: nvidia\n    gpu: %q\n    headroom: 512MiB\n", i, l.UUID)
	}
	return trouble
}
