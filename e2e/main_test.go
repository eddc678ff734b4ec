package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// shared is what the tests of one run have in common: the binary, a folder, and
// the servers that were started.
var shared struct {
	dir  string // removed at the end
	lull string
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "lull-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	shared.dir, shared.lull = dir, filepath.Join(dir, "lull")
	build := exec.Command("go", "build", "-o", shared.lull, "..")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "e2e: go build: %v\n%s", err, out)
		return 1
	}
	defer func() {
		for _, s := range servers {
			s.stop()
		}
	}()
	return m.Run()
}
