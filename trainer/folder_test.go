package trainer

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFolderLetsAllowedUsersPassAndNobodyElse(t *testing.T) {
	for _, c := range []struct{ mode, want os.FileMode }{{0o600, 0o700}, {0o666, 0o711}} {
		dir := filepath.Join(t.TempDir(), "run")
		cfg := DefaultConfig()
		cfg.Path, cfg.Mode = filepath.Join(dir, "lull.sock"), c.mode
		s, err := Listen(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != c.want {
			t.Errorf("socket of mode %v: folder has %v, want %v", c.mode, got, c.want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
