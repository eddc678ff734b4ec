package evidence

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSaveMakesTheFolderAndSaysWhere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out", "core.json")
	var said bytes.Buffer
	if err := Save(&said, "bench core", file, map[string]int{"n": 3}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil || string(text) != "{\n  \"n\": 3\n}\n" || said.String() != "wrote "+file+"\n" {
		t.Errorf("got %q, %v, said %q", text, err, said.String())
	}
	if err := Save(&said, "bench core", "", 1); err != nil {
		t.Errorf("without a file: %v", err)
	}
}

func TestSaveErrorsBeginWithTheBenchmark(t *testing.T) {
	dir := t.TempDir()
	if err := Save(os.Stdout, "bench core", filepath.Join(dir, "x"), func() {}); err == nil || !strings.HasPrefix(err.Error(), "bench core: encode result: ") {
		t.Errorf("error %v", err)
	}
	if err := Save(os.Stdout, "bench core", dir, 1); err == nil || !strings.HasPrefix(err.Error(), "bench core: save: ") {
		t.Errorf("error %v", err)
	}
}

func TestMachineThatCannotBeReadIsUnknown(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	if got := cpuModel(none) + " " + loadAverage(none); got != "unknown unknown" {
		t.Errorf("got %q", got)
	}
	if m := ThisMachine(); m.Cores < 1 || m.Go == "" {
		t.Errorf("got %+v", m)
	}
}
