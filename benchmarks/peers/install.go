package peers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// installLimit bounds one step of an installation; a registry that hangs must
// not hang the benchmark.
const installLimit = 15 * time.Minute

// recipe is an installation as data, so that equal recipes share a folder.
type recipe struct {
	// needs are commands that must be on PATH.
	needs []string
	// files are written into the folder before the first step, by name.
	files map[string][]byte
	// steps run in the folder, one after the other; env is added to each.
	steps [][]string
	env   []string
	// differs are commands whose output makes two installations different.
	differs [][]string
}

// Installed is a peer whose files are here.
type Installed struct {
	Peer
	// Reports is the version that the installed program gives itself.
	Reports string
	root    string
}

// Cache is the folder of what the benchmarks install: $LULL_CACHE, by default
// .cache/lull in the home folder, which scripts/pyenv uses too.
func Cache() (string, error) {
	if dir := os.Getenv("LULL_CACHE"); dir != "" {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("peers: find the cache folder: %w; set LULL_CACHE", err)
	}
	return filepath.Join(home, ".cache", "lull"), nil
}

// Install makes the peer's folder in the cache, or finds it again; an
// installation that was cut short is made anew. Progress goes to say.
func (p Peer) Install(ctx context.Context, cache string, say io.Writer) (Installed, error) {
	for _, c := range p.recipe.needs {
		if _, err := exec.LookPath(c); err != nil {
			return Installed{}, fmt.Errorf("install %s %s from %s: got no command %s, want it on PATH; the run goes on without %s", p.Name, p.Version, p.Registry, c, p.Name)
		}
	}
	root := p.root(ctx, cache)
	unlock, err := lock(ctx, root+".lock")
	if err != nil {
		return Installed{}, fmt.Errorf("install %s: %w", p.Name, err)
	}
	defer unlock()
	if !p.complete(root) {
		fmt.Fprintf(say, "installing %s %s from %s\n", p.Name, p.Version, p.Registry)
		if err := p.make(ctx, root); err != nil {
			return Installed{}, fmt.Errorf("install %s %s from %s: %w; the run goes on without %s", p.Name, p.Version, p.Registry, err, p.Name)
		}
	}
	out, err := command(ctx, root, nil, p.version(root))
	if err != nil {
		return Installed{}, fmt.Errorf("install %s %s: ask it for its version: %w; the run goes on without %s", p.Name, p.Version, err, p.Name)
	}
	reports, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
	return Installed{Peer: p, Reports: reports, root: root}, nil
}

// Here tells whether the peer is installed already; it installs nothing.
func (p Peer) Here(ctx context.Context, cache string) bool { return p.complete(p.root(ctx, cache)) }

func (p Peer) complete(root string) bool {
	_, err := os.Stat(filepath.Join(root, ".complete"))
	return err == nil
}

// root is the peer's folder; its name holds all that the installation rests on.
func (p Peer) root(ctx context.Context, cache string) string {
	h := sha256.New()
	r := p.recipe
	fmt.Fprintln(h, p.Name, p.Version, runtime.GOOS, runtime.GOARCH, r.steps, r.env)
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		fmt.Fprintf(h, "%s\n%s\n", name, r.files[name])
	}
	for _, argv := range r.differs {
		out, err := command(ctx, "", nil, argv)
		fmt.Fprintln(h, out, err)
	}
	return filepath.Join(cache, "peer-"+p.Name+"-"+hex.EncodeToString(h.Sum(nil))[:16])
}

// make installs into an empty folder and stamps it.
func (p Peer) make(ctx context.Context, root string) error {
	if err := errors.Join(os.RemoveAll(root), os.MkdirAll(root, 0o755)); err != nil {
		return err
	}
	for name, text := range p.recipe.files {
		if err := os.WriteFile(filepath.Join(root, name), text, 0o644); err != nil {
			return err
		}
	}
	for _, argv := range p.recipe.steps {
		step, cancel := context.WithTimeout(ctx, installLimit)
		_, err := command(step, root, p.recipe.env, argv)
		cancel()
		if err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(root, ".complete"), nil, 0o644)
}

// command runs one command and returns what it printed; ROOT in its words and in
// env is the folder. The error ends with the last lines.
func command(ctx context.Context, root string, env, argv []string) (string, error) {
	var words []string
	for _, a := range argv {
		words = append(words, strings.ReplaceAll(a, "ROOT", root))
	}
	c := exec.CommandContext(ctx, words[0], words[1:]...)
	c.Dir, c.Env = root, os.Environ()
	for _, e := range env {
		c.Env = append(c.Env, strings.ReplaceAll(e, "ROOT", root))
	}
	c.WaitDelay = time.Second
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", argv[0], err, tail(out.Bytes()))
	}
	return out.String(), nil
}

// tail is the end of a program's output, in one line.
func tail(b []byte) string {
	const most = 600
	if len(b) > most {
		b = b[len(b)-most:]
	}
	return strings.Join(strings.Fields(string(b)), " ")
}

// lockPoll is how often a waiting installation looks again.
const lockPoll = 200 * time.Millisecond

// lock takes a file lock, which its process's end frees too.
func lock(ctx context.Context, file string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return nil, fmt.Errorf("lock %s: %w", file, err)
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", file, err)
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		wait := time.NewTimer(lockPoll)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			f.Close()
			return nil, fmt.Errorf("lock %s: another run installs it: %w", file, ctx.Err())
		}
	}
}
