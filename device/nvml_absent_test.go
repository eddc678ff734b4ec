//go:build !cgo

package device

import (
	"context"
	"testing"
)

func TestBinaryWithoutNVMLSaysSo(t *testing.T) {
	const why = "this lull was built without NVML (CGO_ENABLED=0): build it where a C compiler is (make build)"
	if _, err := OpenGPU("0"); err == nil || err.Error() != "device: gpu 0: "+why {
		t.Errorf("open: %v", err)
	}
	if _, err := ListGPUs(); err == nil || err.Error() != "device: gpus: "+why {
		t.Errorf("list: %v", err)
	}
	var g GPU
	if _, err := g.Read(context.Background()); err == nil || g.Watch(context.Background(), nil) == nil || g.Close() != nil || g.Facts().Name != "" {
		t.Errorf("read: %v", err)
	}
}
