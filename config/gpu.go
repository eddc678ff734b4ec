package config

import (
	"fmt"
	"maps"
	"regexp"
	"strconv"

	"github.com/lull-project/lull/size"
)

// The kinds of devices.
const (
	KindHost   = "host"
	KindNVIDIA = "nvidia"
)

// The headroom of a device of which the file does not say it. A GPU's figures come from
// its driver, in milliseconds, a host's from the kernel, in microseconds.
const (
	hostHeadroom = 64 * size.MiB
	gpuHeadroom  = 512 * size.MiB
)

// withHeadroom puts the default into a device as it stands in the file; what is no
// section with keys is left to the decoder.
func withHeadroom(v any) any {
	keys, ok := v.(map[string]any)
	if !ok {
		return v
	}
	out := map[string]any{"headroom": hostHeadroom.String()}
	if keys["kind"] == KindNVIDIA {
		out["headroom"] = gpuHeadroom.String()
	}
	maps.Copy(out, keys)
	return out
}

// GPU names an NVIDIA GPU: its index as nvidia-smi counts, such as "0", or the UUID
// of a GPU or of a MIG instance. Indexes follow the PCI bus and not
// CUDA_VISIBLE_DEVICES, and may change with the hardware; UUIDs do not.
type GPU string

var gpuName = regexp.MustCompile(`^([0-9]{1,3}|(GPU|MIG)-[A-Za-z0-9/-]+)$`)

// decodeGPU takes a YAML number or text; what it means is judged by Validate.
func decodeGPU(v any) (GPU, error) {
	switch v := v.(type) {
	case string:
		return GPU(v), nil
	case int:
		return GPU(strconv.Itoa(v)), nil
	}
	return "", &valueError{show(v), gpuWanted}
}

const gpuWanted = "0, 1 and so on as nvidia-smi counts, or a UUID: GPU-... or MIG-... (nvidia-smi -L, or `lull probe --gpus`)"

// validate looks at what the kind of a device asks of its other keys.
func (d Device) validate(key string) error {
	switch {
	case d.Kind != KindHost && d.Kind != KindNVIDIA:
		return fmt.Errorf("%s.kind: got %q, want %s or %s", key, d.Kind, KindHost, KindNVIDIA)
	case d.Kind == KindHost && d.GPU != "":
		return fmt.Errorf("%s.gpu: got %q for the kind %s, want it for %s only", key, d.GPU, KindHost, KindNVIDIA)
	case d.Kind == KindNVIDIA && !gpuName.MatchString(string(d.GPU)):
		return fmt.Errorf("%s.gpu: got %q, want %s", key, d.GPU, gpuWanted)
	case d.Capacity < 0 || d.Capacity == 0 && d.Kind == KindHost: // 0 takes what NVML says
		return fmt.Errorf("%s.capacity: got %v, want more than 0", key, d.Capacity)
	case d.Headroom < 0 || d.Capacity > 0 && d.Headroom >= d.Capacity:
		return fmt.Errorf("%s.headroom: got %v, want at least 0 and below the capacity %v", key, d.Headroom, d.Capacity)
	}
	return nil
}

// mixed says which of an engine's devices is of another kind than its first: its KV
// takes bytes from all of them alike.
func (e Engine) mixed(kinds map[string]string) (id string, yes bool) {
	for _, id := range e.Devices {
		if kinds[id] != kinds[e.Devices[0]] {
			return id, true
		}
	}
	return "", false
}
