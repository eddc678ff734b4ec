package sidecar

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/trainer"
)

func TestSessionTakenAboveAnotherWritersIsKeptForTheNextStart(t *testing.T) {
	r := newRig(t, nil)
	own := r.state().Session
	c := r.hello("job", "host0", os.Getpid(), 0, 256<<20, uint64(handover.NewEpoch(own+50, 7)))
	c.wait(`"type":"budget"`)
	r.until("the lock file has the session", func() bool { return r.lockFile() == fmt.Sprintf("%010d", own+51) })
	if now := r.state().Session; now != own+51 {
		t.Errorf("the state says session %d, want %d as the epochs have it", now, own+51)
	}
	r.stop()
	r.start()
	if now := r.state().Session; now != own+52 {
		t.Errorf("session %d at the next start, want %d", now, own+52)
	}
}

func (r *rig) lockFile() string {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, "host0.lock"))
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func TestAbsurdLastEpochIsNotBelieved(t *testing.T) {
	r := newRig(t, nil)
	own := r.state().Session
	c := r.hello("poison", "host0", os.Getpid(), 0, 256<<20, (1<<20-3)<<32|7)
	want := fmt.Sprintf(`{"type":"error","what":"hello","where":"last_epoch","rule":"got session 1048573, want at most 4096 above this sidecar's %d; it is not believed, start the job again"}`, own)
	if got := c.wait(`"last_epoch"`); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	line := c.wait(`"type":"budget"`)
	if m, err := trainer.Decode([]byte(line)); err != nil || handover.Epoch(m.(trainer.Budget).Epoch).Session() != own {
		t.Errorf("order %s, want one of session %d", line, own)
	}
	if logs := r.logs.String(); !strings.Contains(logs, fmt.Sprintf("said=1048573 own=%d above=%d most=4096", own, 1048573-own)) {
		t.Error("the log does not say how far it is above")
	}
	r.stop()
	r.start()
	if now := r.state().Session; now != own+1 {
		t.Errorf("session %d at the next start, want %d", now, own+1)
	}
	r.mustAllBeWhole(r.burst(2, 50, 10))
}

func TestPlaceThatOnlyRootMayWriteIsSaidWithTheRemedy(t *testing.T) {
	denied := &fs.PathError{Op: "mkdir", Path: "/run/lull", Err: syscall.EACCES}
	got := withRemedy(fmt.Errorf("device: lock host0: %w", denied)).Error()
	if want := "device: lock host0: mkdir /run/lull: permission denied: want to run as root, or a state_dir and a trainers.socket in a directory of your own (lull.yaml)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if held := errors.New("device: lock host0: held"); withRemedy(held) != held {
		t.Error("another error got the remedy too")
	}
}

func TestLockFileThatHoldsNoCounterDoesNotStopTheRelay(t *testing.T) {
	r := newRig(t, nil)
	r.stop()
	if err := os.WriteFile(filepath.Join(r.dir, "host0.lock"), []byte("\x00garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.mustAllBeWhole(r.burst(2, 50, 10))
	for _, want := range []string{"level=WARN", "held no counter; it counts anew", `held="\x00garbage"`, "device=host0"} {
		if !strings.Contains(r.logs.String(), want) {
			t.Errorf("the log does not say %q", want)
		}
	}
}
