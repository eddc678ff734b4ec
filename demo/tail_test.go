package demo

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLogThatIsNoJSONIsNamedWithItsLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log.jsonl")
	if err := os.WriteFile(path, []byte("{}\n\noops\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const parse = "invalid character 'o' looking for beginning of value, want a JSON object"
	_, err := readSidecarLog(path)
	if want := path + `:3: event "oops": ` + parse; err == nil || err.Error() != want {
		t.Errorf("sidecar's: %v, want %s", err, want)
	}
	tail, err := openTail(path)
	if err != nil {
		t.Fatal(err)
	}
	defer tail.close()
	l := trainLog{tail: tail}
	err = l.refresh()
	if want := path + `:3: train log "oops": ` + parse; err == nil || err.Error() != want {
		t.Errorf("trainer's: %v, want %s", err, want)
	}
}

func TestLogThatIsNotThereIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none")
	_, err := openTail(path)
	if want := "follow " + path + ": open " + path + ": no such file or directory"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
