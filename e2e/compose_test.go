package e2e

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// compose is the part of docker-compose.yml that is read.
type compose struct {
	Services map[string]struct {
		Command []string
		Build   struct{ Context, Dockerfile string }
		PID     string
		Ports   []string
		Volumes []string
	}
}

func readCompose(t *testing.T) compose {
	t.Helper()
	body, err := os.ReadFile("../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	var c compose
	if err := yaml.Unmarshal(body, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// announced starts a command of lull and reads its ready line.
func announced(t *testing.T, name string, args ...string) (*process, map[string]any) {
	t.Helper()
	out, in := io.Pipe()
	t.Cleanup(func() { _ = in.Close() }) // after the process has ended
	p, err := start(name, nil, in, append([]string{shared.lull}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	ready := make(chan string, 1)
	go func() { // ends when in is closed
		line, _ := bufio.NewReader(out).ReadString('\n')
		ready <- line
		_, _ = io.Copy(io.Discard, out)
	}()
	var line map[string]any
	select {
	case text := <-ready:
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("%s: ready line: got %q: %v", name, text, err)
		}
	case <-p.ended:
		t.Fatalf("%s ended\n%s", name, p.tail())
	case <-time.After(time.Minute):
		t.Fatalf("%s: no ready line within a minute\n%s", name, p.tail())
	}
	return p, line
}

// TestTheComposeFileIsTrue starts what docker-compose.yml starts, as processes:
// the same arguments and the same config, but for addresses and folders.
func TestTheComposeFileIsTrue(t *testing.T) {
	c := readCompose(t)
	emulator, sidecarService := c.Services["emulator"], c.Services["lull"]
	for name, s := range c.Services {
		if _, err := os.Stat(filepath.Join("..", s.Build.Context, s.Build.Dockerfile)); err != nil {
			t.Errorf("service %s: %v", name, err)
		}
	}
	if sidecarService.PID != "service:emulator" || !slices.Contains(sidecarService.Volumes, "./deploy/lull.yaml:/etc/lull/lull.yaml:ro") {
		t.Errorf("service lull: got %+v, want the emulator's processes visible and deploy/lull.yaml mounted", sidecarService)
	}
	for _, p := range sidecarService.Ports {
		if !strings.HasPrefix(p, "127.0.0.1:") {
			t.Errorf("service lull: port %s is open to others; want 127.0.0.1", p)
		}
	}

	_, engine := announced(t, "emulator", replace(t, emulator.Command, "0.0.0.0:8000", "127.0.0.1:0")...)
	dir := t.TempDir()
	config := deployConfig(t, dir, "http://"+engine["listening"].(string))
	p, line := announced(t, "compose", replace(t, sidecarService.Command, "/etc/lull/lull.yaml", config)...)
	l := &sidecar{p: p, url: "http://" + line["listening"].(string), adminURL: "http://" + line["admin"].(string)}
	st := l.waitFor(t, "the emulator is known", time.Minute, func(st state) bool { return len(st.Engines) == 1 && st.Engines[0].Sample != nil })
	if e := st.Engines[0]; e.Static || e.Kind != "emulator" || !st.Lending || e.Sample.Pool != 256<<20 {
		t.Errorf("got %+v lending=%v, want an emulator of 256 MiB that takes a bound", e, st.Lending)
	}
	got := post(t, l.url+"/v1/completions", `{"model":"lull-emulated","prompt":"one two three","max_tokens":16,"stream":true}`)
	if got.status != 200 || !strings.HasSuffix(strings.TrimSpace(string(got.body)), "data: [DONE]") {
		t.Errorf("got %d %s, want a stream that ends", got.status, got.body)
	}
}

// replace swaps one argument, which must be there.
func replace(t *testing.T, args []string, old, with string) []string {
	t.Helper()
	i := slices.Index(args, old)
	if i < 0 {
		t.Fatalf("got arguments %q, want %q among them", args, old)
	}
	args = slices.Clone(args)
	args[i] = with
	return args
}

// deployConfig is deploy/lull.yaml with the addresses and folders of this test.
func deployConfig(t *testing.T, dir, engine string) string {
	t.Helper()
	body, err := os.ReadFile("../deploy/lull.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(body)
	for old, with := range map[string]string{"0.0.0.0:8080": "127.0.0.1:0", "0.0.0.0:9797": "127.0.0.1:0", "http://emulator:8000": engine} {
		if !strings.Contains(text, old) {
			t.Fatalf("deploy/lull.yaml: got no %q", old)
		}
		text = strings.ReplaceAll(text, old, with)
	}
	text += "state_dir: " + dir + "\ntrainers: {socket: " + dir + "/lull.sock}\n"
	path := filepath.Join(dir, "lull.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
