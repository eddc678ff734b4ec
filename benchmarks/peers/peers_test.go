package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// at is a place that does not exist.
var at = place{Root: "ROOT", Work: "/w", Addr: "127.0.0.1:4001", Port: "4001", Second: "4002", Upstream: "127.0.0.1:4000", Cores: 2}

func TestEveryPeerListensOnTheLoopbackBeforeTheUpstream(t *testing.T) {
	for _, p := range All() {
		l := p.launch(at)
		text := strings.Join(append(l.argv, l.env...), " ")
		for _, f := range l.files {
			text += "\n" + f
		}
		if p.Headers != nil {
			text += strings.Join(p.Headers(at.Upstream), "\n")
		}
		for _, want := range []string{"127.0.0.1:4000", "4001", "127.0.0.1"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: got no %s in %s", p.Name, want, text)
			}
		}
		if strings.Contains(text, "0.0.0.0") || strings.Contains(text, "@") && strings.Contains(text, "@ADDR@") {
			t.Errorf("%s: got %s, want the loopback and no name left", p.Name, text)
		}
	}
}

func TestEveryPeerIsPinnedAndExplained(t *testing.T) {
	for _, p := range All() {
		pinned := strings.TrimPrefix(p.Version, "v")
		text := fmt.Sprint(p.recipe.steps)
		for _, f := range p.recipe.files {
			text += string(f)
		}
		if !strings.Contains(text, pinned) || p.Registry == "" || len(p.Settings) == 0 {
			t.Errorf("%s: got %.200s, want version %s, a registry and settings", p.Name, text, pinned)
		}
		for _, s := range p.Settings {
			if _, err := os.Stat(filepath.Join("../..", s)); err != nil {
				t.Errorf("%s: settings: %v", p.Name, err)
			}
		}
	}
}

func TestLocksNameNoRegistry(t *testing.T) {
	for name, lock := range map[string][]byte{"litellm": litellmLock, "vllm-router": vllmRouterLock} {
		for line := range strings.Lines(string(lock)) {
			if !strings.Contains(line, "==") || strings.Contains(line, "://") {
				t.Errorf("%s: got %q, want NAME==VERSION", name, line)
			}
		}
	}
	if bytes.Contains(portkeyLock, []byte(`"resolved"`)) || !bytes.Contains(portkeyLock, []byte(`"integrity"`)) {
		t.Error("portkey: got addresses in the lock, want hashes alone: npm install --package-lock-only --omit-lockfile-registry-resolved")
	}
}

func TestPeersArePickedByName(t *testing.T) {
	got, err := Named([]string{"caddy", "nginx"})
	if err != nil || len(got) != 2 || got[0].Name != "nginx" {
		t.Errorf("got %v, %v, want nginx and caddy", got, err)
	}
	if all, err := Named(nil); err != nil || len(all) != 6 {
		t.Errorf("got %d, %v, want all six", len(all), err)
	}
	want := `peers: got "envoy", want some of nginx, haproxy, caddy, litellm, vllm-router, portkey`
	if _, err := Named([]string{"envoy"}); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// script is a peer that is a shell script.
func script(name, install, run string) Peer {
	return Peer{
		Name: name, Version: "1", Registry: "the test",
		recipe:  recipe{needs: []string{"sh"}, files: map[string][]byte{"made": []byte("x")}, steps: [][]string{{"sh", "-c", install}}},
		version: func(root string) []string { return []string{"sh", "-c", "echo; echo version 1 of ROOT; echo more"} },
		launch:  func(place) launch { return launch{argv: []string{"sh", "-c", run}} },
	}
}

func TestAPeerIsInstalledOnce(t *testing.T) {
	cache := t.TempDir()
	p := script("once", "echo x >> ROOT/runs", "")
	if p.Here(t.Context(), cache) {
		t.Error("got it here before it was installed")
	}
	var said bytes.Buffer
	for range 2 {
		in, err := p.Install(t.Context(), cache, &said)
		if err != nil {
			t.Fatal(err)
		}
		if want := "version 1 of " + in.root; in.Reports != want {
			t.Errorf("got version %q, want %q", in.Reports, want)
		}
		runs, _ := os.ReadFile(filepath.Join(in.root, "runs"))
		if string(runs) != "x\n" {
			t.Errorf("got %q, want one installation", runs)
		}
	}
	if said.String() != "installing once 1 from the test\n" || !p.Here(t.Context(), cache) {
		t.Errorf("got %q", said.String())
	}
}

func TestACutInstallationIsMadeAnew(t *testing.T) {
	cache := t.TempDir()
	p := script("cut", "test ! -e ROOT/old", "")
	root := p.root(t.Context(), cache)
	if err := errors.Join(os.MkdirAll(root, 0o755), os.WriteFile(filepath.Join(root, "old"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Install(t.Context(), cache, io.Discard); err != nil {
		t.Error(err)
	}
}

func TestInstallErrorsNameThePeerAndTheReason(t *testing.T) {
	cache := t.TempDir()
	bad := script("bad", "echo no such package; exit 3", "")
	want := "install bad 1 from the test: sh: exit status 3: no such package; the run goes on without bad"
	if _, err := bad.Install(t.Context(), cache, io.Discard); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if bad.Here(t.Context(), cache) {
		t.Error("got a failed installation taken for a whole one")
	}
	bad.recipe.needs = []string{"lull-no-such-command"}
	want = "install bad 1 from the test: got no command lull-no-such-command, want it on PATH; the run goes on without bad"
	if _, err := bad.Install(t.Context(), cache, io.Discard); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	mute := script("mute", "true", "")
	mute.version = func(string) []string { return []string{"sh", "-c", "echo broken; exit 1"} }
	want = "install mute 1: ask it for its version: sh: exit status 1: broken; the run goes on without mute"
	if _, err := mute.Install(t.Context(), cache, io.Discard); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestInstallWaitsForAnotherAndEndsWithItsContext(t *testing.T) {
	cache := t.TempDir()
	p := script("waits", "true", "")
	unlock, err := lock(t.Context(), p.root(t.Context(), cache)+".lock")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Install(ctx, cache, io.Discard); err == nil || !strings.Contains(err.Error(), "another run installs it: context canceled") {
		t.Errorf("got %v, want the lock and the context", err)
	}
	unlock()
	if _, err := p.Install(t.Context(), cache, io.Discard); err != nil {
		t.Error(err)
	}
}

func TestTheCacheIsThatOfPyenv(t *testing.T) {
	t.Setenv("LULL_CACHE", "/somewhere")
	if dir, err := Cache(); dir != "/somewhere" || err != nil {
		t.Errorf("got %s, %v", dir, err)
	}
	t.Setenv("LULL_CACHE", "")
	t.Setenv("HOME", "/h")
	if dir, err := Cache(); dir != "/h/.cache/lull" || err != nil {
		t.Errorf("got %s, %v", dir, err)
	}
	t.Setenv("HOME", "")
	if _, err := Cache(); err == nil || !strings.Contains(err.Error(), "set LULL_CACHE") {
		t.Errorf("got %v, want what to set", err)
	}
}

func running(t *testing.T, run string, ready func(context.Context, string) error) (*Process, error) {
	t.Helper()
	in, err := script("run", "true", run).Install(t.Context(), t.TempDir(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return in.Start(t.Context(), "127.0.0.1:1", ready)
}

func TestStopEndsTheWholeGroupAndRemovesItsFolder(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for name, run := range map[string]string{
		"asked":    `sleep 60 & echo $! > child; wait`,
		"straggle": `(trap '' TERM; sleep 60) & echo $! > child; exec sleep 60`,
	} {
		var child int
		var work string
		p, err := running(t, run, func(context.Context, string) error {
			files, _ := filepath.Glob(filepath.Join(os.TempDir(), "lull-peer-run-*", "child"))
			for _, f := range files {
				b, _ := os.ReadFile(f)
				if _, err := fmt.Sscan(string(b), &child); err == nil {
					work = filepath.Dir(f)
					return nil
				}
			}
			return errors.New("no child yet")
		})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := p.Stop(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		awaitGone(t, child)
		if _, err := os.Stat(work); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: got %v, want its folder gone", name, err)
		}
	}
}

// awaitGone waits for a process that was sent SIGKILL, which is no child of ours.
func awaitGone(t *testing.T, pid int) {
	t.Helper()
	for range 6000 {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || bytes.Contains(b, []byte(") Z ")) {
			return
		}
		time.Sleep(10 * time.Millisecond) // the kernel tells nobody but the parent
	}
	t.Errorf("process %d: got it running, want it killed", pid)
}

func TestStartErrorsShowTheOutput(t *testing.T) {
	_, err := running(t, "echo address in use; exit 4", func(context.Context, string) error { return errors.New("refused") })
	if err == nil || !strings.Contains(err.Error(), "start run: got its end (exit status 4), want answers on 127.0.0.1:") || !strings.HasSuffix(err.Error(), "its output ends: address in use") {
		t.Errorf("got %v", err)
	}
	in, err := script("run", "true", "").Install(t.Context(), t.TempDir(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	in.launch = func(place) launch { return launch{argv: []string{"/no/such/program"}} }
	if _, err := in.Start(t.Context(), "x", nil); err == nil || !strings.HasPrefix(err.Error(), "start run: fork/exec /no/such/program: ") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	in.launch = func(place) launch { return launch{argv: []string{"sleep", "60"}} }
	_, err = in.Start(ctx, "x", func(context.Context, string) error { cancel(); return errors.New("refused") })
	if err == nil || !strings.Contains(err.Error(), "(refused), want one within 2m0s: context canceled; its output ends: nothing") {
		t.Errorf("got %v", err)
	}
}

// sse answers as an LLM server does.
func sse(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		fmt.Fprint(w, `{"object":"list","data":[{"id":"bench","object":"model"}]}`)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, word := range []string{"one", "two"} {
		fmt.Fprintf(w, "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"bench\",\"choices\":[{\"index\":0,\"delta\":{\"content\":%q},\"finish_reason\":null}]}\n\n", word)
		_ = http.NewResponseController(w).Flush()
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// ask sends one streaming request and wants both words.
func ask(p Peer, upstream string) func(context.Context, string) error {
	return func(ctx context.Context, addr string) error {
		body := strings.NewReader(`{"model":"bench","stream":true,"messages":[{"role":"user","content":"x"}]}`)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v1/chat/completions", body)
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Close = true
		if p.Headers != nil {
			for _, h := range p.Headers(upstream) {
				name, value, _ := strings.Cut(h, ": ")
				req.Header.Set(name, value)
			}
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if res.StatusCode != http.StatusOK || !bytes.Contains(text, []byte("one")) || !bytes.Contains(text, []byte("two")) {
			return fmt.Errorf("got %d %s %v", res.StatusCode, text, err)
		}
		return nil
	}
}

// TestInstalledPeersRelayAStreamAndEnd starts what `make bench-peers` has
// installed on this machine; the tests above hold for all others.
func TestInstalledPeersRelayAStreamAndEnd(t *testing.T) {
	cache, err := Cache()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(sse))
	defer server.Close()
	upstream := server.Listener.Addr().String()
	here := slices.DeleteFunc(All(), func(p Peer) bool { return !p.Here(t.Context(), cache) || testing.Short() })
	for _, p := range here {
		t.Run(p.Name, func(t *testing.T) {
			in, err := p.Install(t.Context(), cache, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(in.Reports, strings.TrimPrefix(p.Version, "v")) {
				t.Errorf("got version %q, want %s", in.Reports, p.Version)
			}
			run, err := in.Start(t.Context(), upstream, ask(p, upstream))
			if err != nil {
				t.Fatal(err)
			}
			if err := run.Stop(); err != nil {
				t.Error(err)
			}
			if err := syscall.Kill(-run.PID, 0); !errors.Is(err, syscall.ESRCH) {
				awaitGone(t, run.PID)
			}
		})
	}
}
