package config

import (
	"strings"
	"testing"

	"github.com/lull-project/lull/size"
)

func parseDevices(devices, of string) (File, error) {
	return Parse([]byte("devices: [" + devices + "]\nengines: [{name: a, kind: vllm, url: 'http://a:1', devices: [" + of + "]}]"))
}

func TestGPUIsNamedByIndexOrUUID(t *testing.T) {
	for text, want := range map[string]GPU{
		"0": "0", "'1'": "1", "GPU-ea5a7f29-c714-06ba-23ef-cedbc44248da": "GPU-ea5a7f29-c714-06ba-23ef-cedbc44248da",
		"MIG-5a7f29-0001": "MIG-5a7f29-0001", "MIG-GPU-ea5a7f29-c714-06ba-23ef-cedbc44248da/1/0": "MIG-GPU-ea5a7f29-c714-06ba-23ef-cedbc44248da/1/0",
	} {
		f, err := parseDevices("{id: gpu0, kind: nvidia, gpu: "+text+", headroom: 1GiB}", "gpu0")
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if d := f.Devices[0]; d.GPU != want || d.Capacity != 0 || d.Headroom != size.GiB {
			t.Errorf("%s: got %+v, want %q and the capacity left to NVML", text, d, want)
		}
	}
}

// TestHeadroomIsThatOfTheKindWhereTheFileSaysNone: a 0 that is written stays.
func TestHeadroomIsThatOfTheKindWhereTheFileSaysNone(t *testing.T) {
	for text, want := range map[string]size.Bytes{
		"{id: a, kind: host, capacity: 1GiB}":              64 * size.MiB,
		"{id: a, kind: host, capacity: 1GiB, headroom: 0}": 0,
		"{id: a, kind: nvidia, gpu: 0}":                    512 * size.MiB,
		"{id: a, kind: nvidia, gpu: 0, headroom: 0}":       0,
		"{id: a, kind: nvidia, gpu: 0, headroom: 1GiB}":    size.GiB,
	} {
		f, err := parseDevices(text, "a")
		if err != nil || f.Devices[0].Headroom != want {
			t.Errorf("%s: got %+v, %v, want a headroom of %v", text, f.Devices, err, want)
		}
	}
	if _, err := parseDevices("7", "a"); err == nil || !strings.HasPrefix(err.Error(), "devices[0]: ") {
		t.Errorf("no section: got %v, want an error at the device", err)
	}
}

func TestBadGPUNamesKeyValueAndRule(t *testing.T) {
	const wanted = "want 0, 1 and so on as nvidia-smi counts, or a UUID: GPU-... or MIG-... (nvidia-smi -L, or `lull probe --gpus`)"
	for text, want := range map[string]string{
		"{id: a, kind: nvidia}":                                                 `devices[0].gpu: got "", ` + wanted,
		"{id: a, kind: nvidia, gpu: -1}":                                        `devices[0].gpu: got "-1", ` + wanted,
		"{id: a, kind: nvidia, gpu: 'cuda:0'}":                                  `devices[0].gpu: got "cuda:0", ` + wanted,
		"{id: a, kind: nvidia, gpu: 0.5}":                                       `devices[0].gpu: got 0.5, ` + wanted,
		"{id: a, kind: nvidia, gpu: [0]}":                                       `devices[0].gpu: got [0], ` + wanted,
		"{id: a, kind: host, gpu: 0, capacity: 1GiB}":                           `devices[0].gpu: got "0" for the kind host, want it for nvidia only`,
		"{id: a, kind: nvidia, gpu: 0}, {id: b, kind: nvidia, gpu: '0'}":        `devices[1].gpu: got "0" again, want each GPU once`,
		"{id: a, kind: nvidia, gpu: 0, capacity: 1GiB, headroom: 2GiB}":         `devices[0].headroom: got 2.0GiB, want at least 0 and below the capacity 1.0GiB`,
		"{id: a, kind: nvidia, gpu: 0}, {id: b, kind: host, capacity: 1GiB}":    `engines[0].devices: got "b" (host) beside "a" (nvidia), want devices of one kind: its KV takes bytes from all of them alike`,
		"{id: a, kind: cuda, gpu: 0}, {id: b, kind: host, capacity: 1GiB}":      `devices[0].kind: got "cuda", want host or nvidia`,
		"{id: a, kind: nvidia, gpu: 'GPU-x y'}, {id: b, kind: nvidia, gpu: 12}": `devices[0].gpu: got "GPU-x y", ` + wanted,
	} {
		if _, err := parseDevices(text, "a, b"); err == nil || err.Error() != want {
			t.Errorf("%s:\ngot  %v\nwant %s", text, err, want)
		}
	}
}
