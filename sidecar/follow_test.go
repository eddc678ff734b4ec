package sidecar

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// watching is a file, what looks at it, and a clock for its times.
type watching struct {
	t *testing.T
	w fileWatch
	n int
}

func watch(t *testing.T) *watching {
	w := &watching{t: t, w: fileWatch{path: filepath.Join(t.TempDir(), "lull.yaml")}}
	w.write("a")
	w.look("at first", false)
	w.look("standing still", true)
	return w
}

// write makes the file another, with a time of its own.
func (w *watching) write(text string) {
	w.t.Helper()
	if err := os.WriteFile(w.w.path, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	w.n++
	at := time.Unix(int64(1000+w.n), 0)
	if err := os.Chtimes(w.w.path, at, at); err != nil {
		w.t.Fatal(err)
	}
}

func (w *watching) look(when string, want bool) {
	w.t.Helper()
	if got := w.w.changed(); got != want {
		w.t.Errorf("%s: got %v, want %v", when, got, want)
	}
}

func TestChangeIsToldOnceWhenTheFileStandsStill(t *testing.T) {
	w := watch(t)
	w.look("unchanged", false)
	w.write("b")
	w.look("just changed", false)
	w.write("bc")
	w.look("still being written", false)
	w.look("standing still", true)
	w.look("told already", false)
	w.write("b")
	w.look("changed back", false)
	w.look("standing still", true)
}

func TestFilePutInPlaceIsAnother(t *testing.T) {
	w := watch(t)
	next := w.w.path + ".next"
	if err := os.WriteFile(next, []byte("b"), 0o600); err != nil { // as long as before
		t.Fatal(err)
	}
	at := time.Unix(1001, 0) // and of the same time
	if err := os.Chtimes(next, at, at); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, w.w.path); err != nil {
		t.Fatal(err)
	}
	w.look("just put there", false)
	w.look("standing still", true)
}

func TestFileThatIsAwayIsNoChangeUntilItIsBack(t *testing.T) {
	w := watch(t)
	if err := os.Remove(w.w.path); err != nil {
		t.Fatal(err)
	}
	w.look("away", false)
	w.look("still away", false)
	w.write("b")
	w.look("back", false)
	w.look("standing still", true)
}
