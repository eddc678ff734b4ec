package sidecar

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
	"github.com/lull-project/lull/trainer"
)

// consult says what a doctor says and returns what it hears on hello.
func (r *rig) consult(place string) string {
	r.t.Helper()
	return refusedHello(r.t, r.socket, trainer.DoctorJob, place)
}

// refusedHello says hello and returns the error line that answers it.
func refusedHello(t *testing.T, socket, job, place string) string {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintln(conn, `{"type":"pong"}`)
	fmt.Fprintf(conn, `{"type":"hello","version":1,"job":%q,"rank":0,"world":1,"pid":%d,"device":%q,"ceiling":0,"held":0,"last_epoch":0}`+"\n", job, os.Getpid(), place)
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		if strings.Contains(lines.Text(), `"what":"hello"`) {
			return lines.Text()
		}
	}
	t.Fatal("hello was not answered by an error line")
	return ""
}

func TestDoctorHearsWhatATrainerWouldAndLeavesNothingBehind(t *testing.T) {
	r := newRig(t, nil)
	for place, want := range map[string]string{
		"host7": `{"type":"error","what":"hello","where":"device","rule":"got \"host7\", want a device of lull.yaml: host0; nothing is lent"}`,
		"cpu":   `{"type":"error","what":"hello","where":"doctor","rule":"the device is host0 of lull.yaml"}`,
		"host0": `{"type":"error","what":"hello","where":"doctor","rule":"the device is host0 of lull.yaml"}`,
	} {
		if got := r.consult(place); got != want {
			t.Errorf("%s: got  %s\nwant %s", place, got, want)
		}
	}
	r.stop() // what it had to say is said
	for _, word := range []string{"level=WARN", "trainer connected", "trainer gone"} {
		if strings.Contains(r.logs.String(), word) {
			t.Errorf("the log says %q:\n%s", word, r.logs.String())
		}
	}
}

func TestDoctorWhoseProcessCannotBeReadHearsIt(t *testing.T) {
	s := &sessions{devices: map[handover.DeviceID]bool{"host0": true}, process: func(int) (*device.Process, error) { return nil, errors.New("no such process") }}
	if got := (reception{s}).diagnosis(7, "host0"); got != unseen {
		t.Errorf("got %+v, want %+v", got, unseen)
	}
}

func TestRefusedTrainerIsSentToTheDoctor(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "lull.sock")
	l := newLone(t, whole("x"), func(f *config.File) {
		f.StateDir, f.Trainers.Socket = t.TempDir(), socket
		f.Devices = []config.Device{{ID: "host0", Kind: "host", Capacity: 80 * size.MiB}}
	}, func(s *Sidecar) {
		s.process = func(int) (*device.Process, error) { return nil, errors.New("no such process") }
	})
	refusedHello(t, socket, "gpt", "host7")
	l.logged("trainer is on a device that lull.yaml does not name; it keeps its own budget and nothing is lent to it; `python -m lull.doctor` in its environment says more")
	refusedHello(t, socket, "gpt", "host0")
	l.logged("Let it share the sidecar's PID namespace (containers: pid:); `python -m lull.doctor` in its environment says more")
}

func TestFaultsOfEveryDayAreNoWarnings(t *testing.T) {
	for err, want := range map[error]slog.Level{
		&trainer.LineError{What: "pong", Where: "type", Rule: trainer.HelloFirst}:                                 slog.LevelDebug,
		&trainer.LineError{What: "hello", Where: "line", Rule: "none came: EOF"}:                                  slog.LevelDebug,
		&trainer.LineError{What: "ack", Where: "type", Rule: trainer.HelloFirst}:                                  slog.LevelWarn,
		&trainer.LineError{What: "hello", Where: "line", Rule: "none came in 16 lines; the connection is closed"}: slog.LevelWarn,
		errors.New("accept: too many open files"):                                                                 slog.LevelWarn,
	} {
		if got := faultLevel(err); got != want {
			t.Errorf("%v: got %v, want %v", err, got, want)
		}
	}
}

func TestProcessThatEndedIsNotSaidToHaveDied(t *testing.T) {
	if got := spoken(trainer.GoneDied); got != "process ended" {
		t.Errorf("got %q: its exit status may be 0", got)
	}
	if got := spoken(trainer.GoneBye); got != trainer.GoneBye {
		t.Errorf("got %q for a bye", got)
	}
	r := newRig(t, nil)
	p := startFakeTrainer(t, r.socket, "honest")
	r.until("the trainer is there", func() bool { return len(r.state().Trainers) == 1 })
	_ = p.Kill()
	r.until("the log says that it is gone", func() bool { return strings.Contains(r.logs.String(), "trainer gone") })
	if log := r.logs.String(); strings.Contains(log, "died") {
		t.Errorf("got\n%s", log)
	}
}
