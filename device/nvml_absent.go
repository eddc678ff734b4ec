//go:build !cgo

package device

import (
	"context"
	"errors"
)

// errNoCGO is what a binary without NVML says of every GPU.
var errNoCGO = errors.New("this lull was built without NVML (CGO_ENABLED=0): build it where a C compiler is (make build)")

// GPU is none: see errNoCGO.
type GPU struct{}

// OpenGPU says that there is no NVML in this binary.
func OpenGPU(which string) (*GPU, error) { return nil, gpuError(which, errNoCGO) }

// ListGPUs says the same.
func ListGPUs() ([]Listed, error) { return nil, gpuError("", errNoCGO) }

// Facts are none.
func (*GPU) Facts() Facts { return Facts{} }

// Read always fails.
func (*GPU) Read(context.Context) (Reading, error) { return Reading{}, errNoCGO }

// Watch always fails.
func (*GPU) Watch(context.Context, func(Fault)) error { return errNoCGO }

// Close has nothing to close.
func (*GPU) Close() error { return nil }
