package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/size"
)

func TestProbeListsGPUsWithLinesThatAreAValidConfig(t *testing.T) {
	list := func() ([]device.Listed, error) {
		return []device.Listed{
			{Index: 0, Facts: device.Facts{Name: "NVIDIA L4", UUID: "GPU-1", Driver: "570.1", Total: 22 * size.GiB}},
			{Index: 1, Facts: device.Facts{Name: "NVIDIA H100 MIG 1g.10gb", UUID: "MIG-2", Driver: "570.1", Total: 10 * size.GiB}},
		}, nil
	}
	read := func(_ context.Context, uuid string) (device.Reading, error) {
		if uuid == "MIG-2" {
			return device.Reading{}, errors.New("device: gpu MIG-2: no permission")
		}
		return device.Reading{Used: size.GiB, Processes: map[int]size.Bytes{7: size.GiB}}, nil
	}
	var out strings.Builder
	err := probeGPUs(t.Context(), &out, list, read)
	if err == nil || err.Error() != "probe: device: gpu MIG-2: no permission" {
		t.Errorf("error %v, want that the second cannot be read", err)
	}
	said, lines, _ := strings.Cut(out.String(), "lines for lull.yaml\n")
	if want := "gpu 0: NVIDIA L4, 22.0GiB, GPU-1, driver 570.1\n  1.0GiB in use, the bytes of 1 processes read\n" +
		"gpu 1: NVIDIA H100 MIG 1g.10gb, 10.0GiB, MIG-2, driver 570.1\n  device: gpu MIG-2: no permission\n"; said != want {
		t.Errorf("got\n%swant\n%s", said, want)
	}
	f, err := config.Parse([]byte(lines + "engines: [{name: a, kind: vllm, url: 'http://a:1', devices: [gpu0]}]\n"))
	if err != nil || len(f.Devices) != 2 || f.Devices[1].GPU != "MIG-2" {
		t.Errorf("lines %q give %+v, %v", lines, f.Devices, err)
	}
}

func TestProbeSaysWhyThereAreNoGPUs(t *testing.T) {
	none := func() ([]device.Listed, error) { return nil, nil }
	if err := probeGPUs(t.Context(), nil, none, nil); err == nil || err.Error() != "probe: NVML shows no GPU here" {
		t.Errorf("error %v", err)
	}
	broken := func() ([]device.Listed, error) { return nil, errors.New("device: gpus: no driver") }
	if err := probeGPUs(t.Context(), nil, broken, nil); err == nil || err.Error() != "probe: device: gpus: no driver" {
		t.Errorf("error %v", err)
	}
	if _, err := run("probe", "--gpus", "http://127.0.0.1:1"); err == nil || err.Error() != "probe: got 1 arguments beside --gpus, want none" {
		t.Errorf("error %v", err)
	}
}

// No machine has a thousand GPUs.
func TestCheckRefusesAGPUThatIsNotThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lull.yaml")
	text := "devices: [{id: gpu0, kind: nvidia, gpu: 998}, {id: gpu1, kind: nvidia, gpu: 999}]\nengines: [{name: a, kind: vllm, url: 'http://127.0.0.1:1', devices: [gpu0]}]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := run("serve", "--config", path, "--check")
	if err == nil || !strings.HasPrefix(err.Error(), "device: gpu 998: ") || !strings.Contains(err.Error(), "; device: gpu 999: ") ||
		!strings.HasSuffix(err.Error(), ": lull serve relays with this and lends nothing on it; all else is valid, and `lull config "+path+"` checks it without this machine's GPUs") {
		t.Errorf("serve --check: %v", err)
	}
	out, err := run("config", path)
	if err != nil || !strings.HasPrefix(out, "warning: device: gpu 998: ") || !strings.HasSuffix(out, path+": valid\n") {
		t.Errorf("config: %q, %v, want a warning: the file may be another machine's", out, err)
	}
}
