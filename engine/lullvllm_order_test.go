package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBoundPageThatIsCutShortIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "v.bound")
	if err := os.WriteFile(path, make([]byte, 10), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := openBoundPage(path)
	if want := "bound page " + path + ": 10 bytes, want 4096: EOF"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err := openBoundPage(path + "x"); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("got %v, want it to say that there is none", err)
	}
}
