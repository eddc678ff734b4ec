package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// commandLine makes the test binary be lull itself: signals need a process of
// their own.
const commandLine = "LULL_TEST_COMMAND_LINE"

func TestMain(m *testing.M) {
	if args := os.Getenv(commandLine); args != "" {
		os.Exit(Main(strings.Fields(args)))
	}
	os.Exit(m.Run())
}

// process is a running `lull serve`.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	base  string
	log   *logs
	ended chan error
}

// logs is what the process says on stderr.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// startServe starts the process by a config before an upstream, and waits until
// it listens.
func startServe(t *testing.T, path string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(os.Args[0]), log: &logs{}, ended: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), commandLine+"=serve --config "+path)
	p.cmd.Stderr = p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		if t.Failed() {
			t.Log(p.log.String())
		}
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	var ready struct{ Listening string }
	if err != nil || json.Unmarshal(line, &ready) != nil {
		t.Fatalf("ready line: got %q, %v\n%s", line, err, p.log)
	}
	p.base = "http://" + ready.Listening
	go func() { p.ended <- p.cmd.Wait() }() // ends when the process does
	return p
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// logged waits for a line of the log.
func (p *process) logged(text string) {
	p.t.Helper()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(p.log.String(), text); time.Sleep(5 * time.Millisecond) { // another process
		if time.Now().After(deadline) {
			p.t.Fatalf("the log does not say %q:\n%s", text, p.log)
		}
	}
}

// exits waits for its end with status 0.
func (p *process) exits() {
	p.t.Helper()
	select {
	case err := <-p.ended:
		if err != nil {
			p.t.Errorf("exit: %v, want status 0", err)
		}
	case <-time.After(time.Minute):
		p.t.Fatal("it runs on a minute after the signal")
	}
}

// answer is what a stream ended with.
type answer struct {
	text string
	err  error
}

// stream opens one and waits for its first bytes; its end comes on the channel.
func (p *process) stream() <-chan answer {
	p.t.Helper()
	res, err := http.Post(p.base+"/v1/chat/completions", "application/json", strings.NewReader(`{"stream":true}`))
	if err != nil {
		p.t.Fatal(err)
	}
	first := make([]byte, len("data: {}\n\n"))
	if _, err := io.ReadFull(res.Body, first); err != nil {
		p.t.Fatal(err)
	}
	out := make(chan answer, 1)
	go func() { // ends with the stream
		defer res.Body.Close()
		rest, err := io.ReadAll(res.Body)
		out <- answer{string(rest), err}
	}()
	return out
}

// slowUpstream streams one event at once and [DONE] when it may.
func slowUpstream(t *testing.T) (url string, finish func()) {
	may := make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {}\n\n")
		w.(http.Flusher).Flush()
		select {
		case <-may:
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(up.Close)
	return up.URL, sync.OnceFunc(func() { close(may) })
}

func writeConfig(t *testing.T, path, url, more string) string {
	t.Helper()
	text := fmt.Sprintf("listen: \"127.0.0.1:0\"\nadmin: {listen: \"127.0.0.1:0\"}\nengines: [{name: main, kind: auto, url: %q}]\n%s", url, more)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFirstSIGTERMLetsStreamsFinish(t *testing.T) {
	url, finish := slowUpstream(t)
	p := startServe(t, writeConfig(t, filepath.Join(t.TempDir(), "lull.yaml"), url, ""))
	stream := p.stream()
	p.signal(syscall.SIGTERM)
	p.logged("draining: new requests are turned away")
	finish()
	if got := <-stream; got.err != nil || got.text != "data: [DONE]\n\n" {
		t.Errorf("got %q, %v; want the stream's end", got.text, got.err)
	}
	p.exits()
}

func TestSecondSIGTERMCutsAtOnce(t *testing.T) {
	url, _ := slowUpstream(t)
	p := startServe(t, writeConfig(t, filepath.Join(t.TempDir(), "lull.yaml"), url, "proxy: {drain_timeout: 1h}\n"))
	stream := p.stream()
	p.signal(syscall.SIGTERM)
	p.logged("draining: new requests are turned away")
	p.signal(syscall.SIGTERM)
	if got := <-stream; got.err == nil {
		t.Errorf("got %q and a clean end, want a broken transfer", got.text)
	}
	p.exits()
	p.logged("hurried=true")
}

func TestSIGHUPReloadsAndStopsNothing(t *testing.T) {
	url, finish := slowUpstream(t)
	path := writeConfig(t, filepath.Join(t.TempDir(), "lull.yaml"), url, "")
	p := startServe(t, path)
	stream := p.stream()
	writeConfig(t, path, url, "slo: {ttft: 5s}\nlisten: \"127.0.0.1:9\"\n")
	p.signal(syscall.SIGHUP)
	p.logged("config refused; the old one stays")
	p.logged(path + ": not YAML: ") // listen stands there twice
	writeConfig(t, path, url, "slo: {ttft: 5s}\nstate_dir: /elsewhere\n")
	p.signal(syscall.SIGHUP)
	p.logged("keys=[state_dir]")
	p.logged("changed=[slo.ttft]")
	finish()
	if got := <-stream; got.err != nil || got.text != "data: [DONE]\n\n" {
		t.Errorf("got %q, %v; want the stream's end", got.text, got.err)
	}
	p.signal(syscall.SIGTERM)
	p.exits()
}
